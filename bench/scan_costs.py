"""What scanner mode costs: the first capture, a capture and a restore of ten changed files, and a look at an unchanged
workspace, against the number of files; beside git and cp on the same tree. And the first capture of large files.

    python -m bench.scan_costs [--sizes 1000,10000,50000,100000] [--rounds 5] [--large MB] [--directory DIR]

Small text files, some dozens a directory, in a repository. Medians; git and plyfs take turns, so that both meet the
same machine. What is first is done once for each size, into a disk that has written everything before.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable

from vfs.scan.policy import Policy
from vfs.scan.scanned import ScannedWorkspace

CHANGED = 10
FILES_A_DIRECTORY = 25


def fill(top: str, count: int) -> list[str]:
    """A workspace of ``count`` files, committed; their paths."""
    paths = []
    for number in range(count):
        directory = f"{top}/p{number // 2000:03}/d{number // FILES_A_DIRECTORY % 80:02}"
        if number % FILES_A_DIRECTORY == 0:
            os.makedirs(directory, exist_ok=True)
        path = f"{directory}/f{number:06}.py"
        with open(path, "w") as file:
            file.write(f"# file {number}\n" + "value = 1\n" * (number % 60))
        paths.append(path)
    for arguments in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "all"]):
        git(top, *arguments)
    return paths


def git(top: str, *arguments: str) -> None:
    """Run git there."""
    names = ["-c", "user.name=bench", "-c", "user.email=bench@localhost", "-c", "gc.auto=0"]
    subprocess.run(["git", *names, *arguments], cwd=top, check=True, capture_output=True)


def git_capture(top: str) -> None:
    """What a shadow repository does for a checkpoint."""
    git(top, "add", "-A")
    git(top, "write-tree")


def first_git_add(workspace: str, top: str) -> None:
    """What a shadow repository does for its first checkpoint."""
    shadow = ["--git-dir", os.path.join(top, "shadow"), "--work-tree", workspace]
    git(workspace, *shadow, "init", "-q")
    git(workspace, *shadow, "add", "-A")


def copy(workspace: str, top: str) -> None:
    """What reading and writing all of it costs a program in C."""
    subprocess.run(["cp", "-r", workspace, os.path.join(top, "copy")], check=True)


def make_files(top: str, count: int) -> None:
    """As many files as the first capture makes, each written, closed and renamed: what the disk alone costs."""
    data = b"value = 1\n" * 30
    for number in range(256):
        os.makedirs(f"{top}/made/{number:02x}")
    for number in range(count):
        new = f"{top}/made/new"
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400)
        os.write(fd, data)
        os.close(fd)
        os.replace(new, f"{top}/made/{number * 7919 % 256:02x}/{number}")


def timed(action: Callable[[], object]) -> float:
    """Seconds that it takes."""
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def edit(paths: list[str], round_number: int) -> None:
    """Change ten files, all over the tree."""
    step = len(paths) // CHANGED
    for index in range(CHANGED):
        with open(paths[(index * step + round_number) % len(paths)], "a") as file:
            file.write(f"changed {round_number}\n")


def measure(count: int, rounds: int, directory: str | None) -> dict[str, float]:
    """Medians in seconds by what was done."""
    top = tempfile.mkdtemp(prefix="plyfs-scan-", dir=directory)
    samples: dict[str, list[float]] = {}

    def note(name: str, action: Callable[[], object]) -> None:
        samples.setdefault(name, []).append(timed(action))

    def note_first(name: str, action: Callable[[], object]) -> None:
        os.sync()
        note(name, action)

    try:
        workspace = os.path.join(top, "workspace")
        paths = fill(workspace, count)
        served = ScannedWorkspace(workspace, os.path.join(top, "home"), Policy(), lambda name, data: None)
        note_first("first capture", served.start)
        note_first("first git add", lambda: first_git_add(workspace, top))
        note_first("cp -r", lambda: copy(workspace, top))
        note_first("as many files made", lambda: make_files(top, count))
        os.sync()
        for round_number in range(rounds):
            note("unchanged", served.checkpoint)
            note("git status", lambda: git(workspace, "status", "--porcelain"))
            edit(paths, round_number)
            note("capture", served.checkpoint)
            note("git add, write-tree", lambda: git_capture(workspace))
            note("restore", served.undo)
            note("git checkout", lambda: git(workspace, "checkout", "-q", "--force", "HEAD", "--", "."))
            served.checkpoint()
        served.unmount()
        served.close()
        again = ScannedWorkspace(workspace, os.path.join(top, "home"), Policy(), lambda name, data: None)
        note("start again", again.start)
        again.close()
    finally:
        shutil.rmtree(top)
    return {name: statistics.median(values) for name, values in samples.items()}


def measure_large(megabytes: int, directory: str | None) -> dict[str, float]:
    """Seconds for files of 2 MB without structure, as many as that makes."""
    top = tempfile.mkdtemp(prefix="plyfs-scan-", dir=directory)
    try:
        workspace = os.path.join(top, "workspace")
        os.makedirs(workspace)
        for number in range(megabytes // 2):
            with open(f"{workspace}/f{number:04}.bin", "wb") as file:
                file.write(os.urandom(2_000_000))
        served = ScannedWorkspace(workspace, os.path.join(top, "home"), Policy(), lambda name, data: None)
        os.sync()
        result = {"first capture": timed(served.start)}
        served.close()
        os.sync()
        result["cp -r"] = timed(lambda: copy(workspace, top))
        os.sync()
        result["first git add"] = timed(lambda: first_git_add(workspace, top))
        return result
    finally:
        shutil.rmtree(top)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="1000,10000,50000,100000")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--large", type=int, default=400, help="megabytes in files of 2 MB, 0 for none")
    parser.add_argument("--directory")
    options = parser.parse_args()
    sizes = [int(size) for size in options.sizes.split(",")]
    results = [measure(size, options.rounds, options.directory) for size in sizes]
    print("| seconds | " + " | ".join(f"{size:,} files" for size in sizes) + " |")
    print("| --- " * (len(sizes) + 1) + "|")
    for name in results[0]:
        print(f"| {name} | " + " | ".join(f"{result[name]:.3f}" for result in results) + " |")
    if options.large:
        seconds = ", ".join(
            f"{name} {value:.2f} s" for name, value in measure_large(options.large, options.directory).items()
        )
        print(f"\n{options.large} MB in files of 2 MB: {seconds}")


if __name__ == "__main__":
    main()
