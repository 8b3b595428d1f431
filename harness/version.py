"""The version of plyfs, without the 20 ms that asking the installation takes."""

VERSION = "0.1.0"
