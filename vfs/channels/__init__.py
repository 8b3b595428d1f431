"""What speaks FUSE, and the mounts. Knows the file system only as ``vfs.channel.FileSystem``."""
