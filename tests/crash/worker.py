"""A program that changes a directory at random, and writes down outside of it what it is about to do and what it did.

Run as ``worker.py DIRECTORY LOG SEED COUNT``. The log holds one JSON line before and one after each operation, so that
whoever kills the file system below knows which operations were answered. ``perform`` makes one operation anywhere.
"""

from __future__ import annotations

import json
import os
import random
import sys
from typing import Any

NAMES = [f"n{number}" for number in range(24)]
Operation = list[Any]


def choose(dice: random.Random, number: int) -> Operation:
    """One operation; most of them succeed."""
    where = dice.choice(["", "d0/", "d1/", "d0/d2/"])
    name = where + dice.choice(NAMES)
    other = dice.choice(["", "d0/", "d1/", "d0/d2/"]) + dice.choice(NAMES)
    kind = dice.choices(
        [
            "write",
            "append",
            "patch",
            "unlink",
            "rename",
            "mkdir",
            "rmtree",
            "chmod",
            "symlink",
            "link",
            "truncate",
            "xattr",
        ],
        [20, 10, 8, 6, 8, 4, 1, 4, 3, 3, 4, 3],
    )[0]
    match kind:
        case "write" | "append":
            return [kind, name, number, dice.choice([0, 10, 1000, 5000, 70_000, 300_000])]
        case "patch":
            return [kind, name, number, dice.randrange(0, 80_000), dice.choice([1, 100, 5000])]
        case "mkdir" | "rmtree":
            return [kind, dice.choice(["d0", "d1", "d0/d2"])]
        case "chmod":
            return [kind, name, dice.choice([0o600, 0o644, 0o755, 0o400])]
        case "truncate":
            return [kind, name, dice.choice([0, 5, 4096, 100_000])]
        case "rename" | "link":
            return [kind, name, other]
        case "symlink":
            return [kind, name, f"target-{number}"]
        case _:
            return [kind, name, str(number)]


def data(number: int, length: int) -> bytes:
    """Bytes that no other operation writes."""
    return (b"%d\n" % number * (length // 4 + 1))[:length]


def perform(root: str, operation: Operation) -> None:
    """Make ``operation`` below ``root``. One that fails leaves things as they are; errors of the mount itself raise."""
    try:
        _perform(root, operation)
    except (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError):
        pass
    except OSError as error:
        if error.errno not in (39, 22, 1, 40):  # ENOTEMPTY, EINVAL, EPERM, ELOOP
            raise


def _perform(root: str, operation: Operation) -> None:
    kind, *rest = operation
    path = os.path.join(root, rest[0])
    match kind:
        case "write":
            with open(path, "wb", buffering=0) as file:
                file.write(data(rest[1], rest[2]))
        case "append":
            with open(path, "ab", buffering=0) as file:
                file.write(data(rest[1], rest[2]))
        case "patch":
            with open(path, "r+b", buffering=0) as file:
                file.seek(rest[2])
                file.write(data(rest[1], rest[3]))
        case "unlink":
            os.unlink(path)
        case "rename":
            os.rename(path, os.path.join(root, rest[1]))
        case "link":
            os.link(path, os.path.join(root, rest[1]), follow_symlinks=False)
        case "mkdir":
            os.mkdir(path)
        case "rmtree":
            os.rename(path, os.path.join(root, "gone"))
            for top, directories, files in os.walk(os.path.join(root, "gone"), topdown=False):
                for name in files:
                    os.unlink(os.path.join(top, name))
                for name in directories:
                    there = os.path.join(top, name)
                    os.unlink(there) if os.path.islink(there) else os.rmdir(there)
            os.rmdir(os.path.join(root, "gone"))
        case "chmod":
            os.chmod(path, rest[1])
        case "truncate":
            os.truncate(path, rest[1])
        case "symlink":
            os.symlink(rest[1], path)
        case "xattr":
            os.setxattr(path, "user.number", rest[1].encode(), follow_symlinks=False)


def main() -> None:
    """See the module."""
    root, log, seed, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    dice = random.Random(seed)
    with open(log, "a", encoding="utf-8") as file:
        for number in range(count):
            operation = choose(dice, number)
            file.write(json.dumps(["about", operation]) + "\n")
            file.flush()
            perform(root, operation)
            file.write(json.dumps(["done", operation]) + "\n")
            file.flush()


if __name__ == "__main__":
    main()
