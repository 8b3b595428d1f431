"""The file system: the live tree, the channels that serve it, and the operations on whole trees."""
