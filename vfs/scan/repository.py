"""Where git's ignore rules come from beside the ``.gitignore`` files of the tree, and what it tracks all the same.

Owns finding a repository's rules outside of the tree (``info/exclude``, the user's global file, ``.gitignore`` files
above a workspace that is a part of a repository) and asking git for tracked files that its rules would ignore. git is
run only for what only git can tell, never with a hook or monitor of the repository's, and its answers are kept until
a file they depend on changes. Does not own the rules themselves (``ignorerules``).

Concurrency: one scan at a time.
"""

from __future__ import annotations

import os
import stat
import subprocess
from typing import NamedTuple, TypeAlias

from store.format import Repository, RuleText
from vfs.scan.ignorerules import MAX_BYTES, RuleFile, Rules

GIT = ".git"
SECONDS = 60

Signature: TypeAlias = tuple[int, int, int, int] | None


class Found(NamedTuple):
    """A repository: its rules outside of the tree, and what it tracks though they or others would ignore it."""

    record: Repository
    rules: Rules
    tracked: frozenset[bytes]
    """Paths from the repository's top, with the directories above them."""


def rules_of(record: Repository) -> Rules:
    """The rules at the top of ``record``'s part of the workspace, without the ``.gitignore`` that stands there."""
    case = record.ignore_case
    files = tuple(RuleFile(text.base, text.text, case) for text in reversed(record.texts))
    return Rules(files, case)


class Repositories:
    """Looks at repositories. ``notes`` tells people what could not be asked."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self._settings: dict[str, tuple[list[Signature], bool, str | None]] = {}
        self._tracked: dict[str, tuple[object, frozenset[bytes]]] = {}

    def at(self, directory: str, path: bytes) -> Found | None:
        """The repository whose top is ``directory``, which the workspace calls ``path``; None if it is none."""
        return self._found(directory, directory, path)

    def around(self, workspace: str) -> Found | None:
        """The repository that ``workspace`` is in or is; None if it is in none, or if git ignores all of it."""
        top = workspace
        while not os.path.lexists(os.path.join(top, GIT)):
            above = os.path.dirname(top)
            if above == top:
                return None
            top = above
        found = self._found(top, workspace, b"")
        if found is None or top == workspace:
            return found
        rules = rules_of(Repository(b"", b"", found.record.ignore_case, found.record.texts))
        parts = found.record.prefix.split(b"/")
        for depth, name in enumerate(parts):
            if rules.ignores(b"/".join(parts[: depth + 1]), name, True):
                return None
        return found

    def _found(self, top: str, directory: str, path: bytes) -> Found | None:
        git = _git_directory(top)
        if git is None:
            return None
        ignore_case, excludes = self._config(top, git)
        prefix = b"" if top == directory else _relative(directory, top)
        texts = []
        for file in (excludes, os.path.join(_common(git), "info", "exclude")):
            text = None if file is None else _read(file)
            if text:
                texts.append(RuleText(b"", text))
        above = top
        for name in prefix.split(b"/") if prefix else ():
            text = _read(os.path.join(above, ".gitignore"), follow=False)
            if text:
                base = _relative(above, top) + b"/" if above != top else b""
                texts.append(RuleText(base, text))
            above = os.path.join(above, os.fsdecode(name))
        record = Repository(path, prefix, ignore_case, tuple(texts))
        return Found(record, rules_of(record), frozenset())

    def _config(self, top: str, git: str) -> tuple[bool, str | None]:
        """(core.ignorecase, core.excludesFile)."""
        home = os.path.expanduser("~")
        configured = os.environ.get("XDG_CONFIG_HOME") or os.path.join(home, ".config")
        files = [os.path.join(git, "config"), os.path.join(_common(git), "config"), os.path.join(home, ".gitconfig")]
        files += [os.path.join(configured, "git", "config"), "/etc/gitconfig"]
        seen: list[Signature] = [_signature(file) for file in files]
        known = self._settings.get(top)
        if known is None or known[0] != seen:
            excludes = self._ask(top, "config", "--path", "--get", "core.excludesFile")
            case = self._ask(top, "config", "--type=bool", "--get", "core.ignorecase")
            path = os.fsdecode(excludes.rstrip(b"\n")) if excludes else None
            known = self._settings[top] = (seen, case == b"true\n", path)
        return known[1], known[2] or os.path.join(configured, "git", "ignore")

    def tracked(self, top: str, rules: object) -> frozenset[bytes]:
        """What the repository at ``top`` tracks though it is ignored, from its top, with the directories above.

        ``rules`` is anything that differs when the ignore rules do.
        """
        git = _git_directory(top)
        signature = None if git is None else _signature(os.path.join(git, "index"))
        if git is None or signature is None:
            return frozenset()
        known = self._tracked.get(top)
        if known is None or known[0] != (signature, rules):
            answer = self._ask(top, "ls-files", "-z", "--cached", "--ignored", "--exclude-standard")
            paths: set[bytes] = set()
            for path in (answer or b"").split(b"\0"):
                while path and path not in paths:
                    paths.add(path)
                    path = path.rpartition(b"/")[0]
            known = self._tracked[top] = ((signature, rules), frozenset(paths))
        return known[1]

    def _ask(self, top: str, *arguments: str) -> bytes | None:
        """What git answers; None if it fails or is not there."""
        environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
        environment |= {"GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
        quiet = ("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-c", "safe.directory=*")
        try:
            done = subprocess.run(
                ["git", *quiet, *arguments],
                cwd=top,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            self._note(f"git could not be asked ({error}): files that it tracks and ignores are not captured")
            return None
        if done.returncode > 1:
            self._note(f"git {arguments[0]} failed in {top}: {os.fsdecode(done.stderr).strip()[:200]}")
        return done.stdout if done.returncode == 0 else None

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


def _git_directory(top: str) -> str | None:
    """Where a repository's own files are: ``.git``, or where that file points."""
    path = os.path.join(top, GIT)
    try:
        status = os.stat(path)
    except OSError:
        return None
    if stat.S_ISDIR(status.st_mode):
        return path if os.path.exists(os.path.join(path, "HEAD")) else None
    text = _read(path)
    if text is None or not text.startswith(b"gitdir: "):
        return None
    return os.path.join(top, os.fsdecode(text[8:].rstrip(b"\r\n")))


def _common(git: str) -> str:
    """The directory that a worktree shares with its repository."""
    text = _read(os.path.join(git, "commondir"))
    return git if text is None else os.path.join(git, os.fsdecode(text.rstrip(b"\n")))


def _read(path: str, follow: bool = True) -> bytes | None:
    flags = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        fd = os.open(path, flags if follow else flags | getattr(os, "O_NOFOLLOW", 0))
    except OSError:
        return None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        return None
    with open(fd, "rb") as file:
        data = file.read(MAX_BYTES + 1)
    return data if len(data) <= MAX_BYTES else None


def _signature(path: str) -> Signature:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _relative(path: str, top: str) -> bytes:
    return os.fsencode(os.path.relpath(path, top).replace(os.sep, "/"))
