"""A served workspace without a file system: snapshots of a plain directory, held in memory.

For tests of the daemon, the socket and the commands. It passes the contract suite that the real one passes
(tests/harness/workspace_contract.py), serves the directory itself, and can be told to be slow or busy by files in it:
``.slow`` holds the seconds that ``diff`` takes, ``.busy`` makes ``unmount`` refuse, ``.broken`` makes ``drift`` fail
unexpectedly. It keeps its checkpoints in a file, so that a killed daemon's successor finds them.

Concurrency: one lock around everything but the slowness.
"""

from __future__ import annotations

import difflib
import hashlib
import os
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from typing import Literal

import msgspec

from harness.registry import Registry
from harness.serving import Listener, ServeOptions
from store.errors import DamagedError, UnknownCheckpointError
from vfs.workspace import (
    Change,
    CheckpointResult,
    ConflictError,
    DiffResult,
    Kept,
    ListedEntry,
    LogResult,
    LogRow,
    NothingToDoError,
    RefusedError,
    RestoreResult,
    StatusResult,
    UnmountResult,
)

CONTROLS = frozenset({".slow", ".busy", ".broken"})


class Node(msgspec.Struct, frozen=True):
    """One file, directory or link. ``ino`` finds renames and is no part of what it is."""

    kind: str
    mode: int
    data: bytes
    ino: int

    def same(self, other: Node) -> bool:
        return (self.kind, self.mode, self.data) == (other.kind, other.mode, other.data)


Tree = dict[str, Node]


class Saved(msgspec.Struct):
    """What survives the process."""

    rows: list[LogRow]
    trees: list[list[tuple[bytes, Node]]]
    head: str
    redo: list[str]


def scan(root: str) -> Tree:
    """The directory as it is now."""
    tree: Tree = {}
    waiting = [""]
    while waiting:
        below = waiting.pop()
        with os.scandir(os.path.join(root, below)) as entries:
            for entry in entries:
                path = os.path.join(below, entry.name)
                status = entry.stat(follow_symlinks=False)
                mode = stat.S_IMODE(status.st_mode)
                if path in CONTROLS:
                    continue
                if entry.is_symlink():
                    tree[path] = Node("symlink", 0, os.fsencode(os.readlink(entry.path)), status.st_ino)
                elif entry.is_dir():
                    tree[path] = Node("directory", mode, b"", status.st_ino)
                    waiting.append(path)
                else:
                    with open(entry.path, "rb") as file:
                        tree[path] = Node("file", mode, file.read(), status.st_ino)
    return tree


def put(root: str, tree: Tree, present: Tree, keep: Callable[[str], bool]) -> None:
    """Make the directory ``tree``, but for paths to ``keep``."""
    for path in sorted(present, reverse=True):
        old, new = present[path], tree.get(path)
        if not keep(path) and (new is None or new.kind != old.kind or new.kind == "symlink"):
            full = os.path.join(root, path)
            os.rmdir(full) if old.kind == "directory" else os.unlink(full)
    for path in sorted(tree):
        node, old = tree[path], present.get(path)
        full = os.path.join(root, path)
        if keep(path) or (old is not None and old.same(node)):
            continue
        if node.kind == "symlink":
            os.symlink(os.fsdecode(node.data), full)
            continue
        if node.kind == "directory":
            os.makedirs(full, exist_ok=True)
        else:
            if os.path.lexists(full):
                os.unlink(full)
            with open(full, "wb") as file:
                file.write(node.data)
        os.chmod(full, node.mode)


def changes_between(before: Tree, after: Tree) -> list[Change]:
    """What turns ``before`` into ``after``; a file that is gone and one with its inode that has come are a rename."""
    gone = {path: node for path, node in before.items() if path not in after}
    by_ino = {node.ino: path for path, node in gone.items() if node.kind != "directory"}
    found = []
    for path, node in after.items():
        old = before.get(path)
        if old is None:
            source = by_ino.pop(node.ino, None)
            if source is not None:
                del gone[source]
                found.append(Change(path, "rename", source))
            else:
                found.append(Change(path, "create"))
        elif old.kind != node.kind:
            found.append(Change(path, "type"))
        elif old.data != node.data:
            found.append(Change(path, "overwrite"))
        elif old.mode != node.mode:
            found.append(Change(path, "mode"))
    found.extend(Change(path, "delete") for path in gone)
    return sorted(found, key=lambda change: change.path)


def in_git(path: str) -> bool:
    return ".git" in path.split("/")


class FakeWorkspace:
    """See the module."""

    def __init__(self, path: str, state_path: str | None = None, listener: Listener = lambda name, data: None) -> None:
        self.path = path
        self._state_path = state_path
        self._listener = listener
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._trees: dict[str, Tree] = {}
        self._rows: list[LogRow] = []
        self._head = ""
        self._redo: list[str] = []
        self._recovered = False

    # Life

    def start(self) -> None:
        with self._lock:
            if os.path.exists(os.path.join(self.path, ".refuse")):
                raise RefusedError(f"{self.path} holds a file .refuse", "remove it")
            if os.path.exists(os.path.join(self.path, ".die")):
                os._exit(9)
            if self._state_path is not None and os.path.exists(self._state_path):
                self._load()
            else:
                self._add(scan(self.path), "base", "base", None, None)

    def notes(self) -> list[str]:
        return ["recovered"] if self._recovered else []

    def store_directory(self) -> str:
        if self._state_path is None:
            self._state_path = os.path.join(tempfile.mkdtemp(prefix="plyfs-fake-"), "state")
        directory = f"{self._state_path}.store"
        os.makedirs(directory, exist_ok=True)
        return directory

    def knows(self, checkpoint: str) -> bool:
        return any(row.id == checkpoint for row in self._rows)

    def resolve(self, spec: str) -> str:
        return self._resolve(spec)

    def wait(self) -> None:
        self._over.wait()

    def close(self) -> None:
        self._over.set()

    def _load(self) -> None:
        with open(self._state_path or "", "rb") as file:
            saved = msgspec.msgpack.decode(file.read(), type=Saved)
        self._rows, self._head, self._redo = saved.rows, saved.head, saved.redo
        for row, tree in zip(saved.rows, saved.trees, strict=True):
            self._trees[row.id] = {os.fsdecode(path): node for path, node in tree}
        self._recovered = True

    def _save(self) -> None:
        if self._state_path is None:
            return
        trees = [[(os.fsencode(path), node) for path, node in self._trees[row.id].items()] for row in self._rows]
        data = msgspec.msgpack.encode(Saved(self._rows, trees, self._head, self._redo))
        with open(f"{self._state_path}.new", "wb") as file:
            file.write(data)
        os.replace(f"{self._state_path}.new", self._state_path)

    # Checkpoints

    def _add(self, tree: Tree, kind: str, label: str | None, session: str | None, node: str | None) -> LogRow:
        parent = self._head or None
        changed = len(changes_between(self._trees[parent], tree)) if parent else 0
        name = hashlib.blake2b(f"{len(self._rows)} {time.time_ns()}".encode(), digest_size=6).hexdigest()
        row = LogRow(name, parent, time.time(), label, session, node, changed, "sealed", kind)
        self._rows.append(row)
        self._trees[name] = tree
        self._head = name
        self._save()
        self._listener("sealed", {"id": name})
        return row

    def _row(self, name: str) -> LogRow:
        return next(row for row in self._rows if row.id == name)

    def _resolve(self, spec: str) -> str:
        if spec == "@" or spec.startswith("@~"):
            name = self._head
            for _ in range(int(spec[2:] or "1") if len(spec) > 1 else 0):
                name = self._row(name).parent or ""
                if not name:
                    raise UnknownCheckpointError(f"{spec} goes further back than the base", "see `plyfs log`")
            return name
        if spec == "base":
            return self._rows[0].id
        for row in reversed(self._rows):
            if row.label == spec:
                return row.id
        found = [row.id for row in self._rows if len(spec) >= 4 and row.id.startswith(spec)]
        if len(found) != 1:
            raise UnknownCheckpointError(f"no checkpoint is called {spec!r}", "`plyfs log` lists them")
        return found[0]

    def checkpoint(
        self, label: str | None = None, session: str | None = None, node: str | None = None, sync: bool = False
    ) -> CheckpointResult:
        started = time.perf_counter()
        with self._lock:
            tree = scan(self.path)
            created = self._dirty(tree)
            row = self._row(self._head)
            if created:
                row = self._add(tree, "user", label, session, node)
                self._redo = []
                self._save()
            return CheckpointResult(
                row.id,
                row.parent,
                created,
                row.changed if created else 0,
                row.label,
                row.session,
                row.node,
                time.perf_counter() - started,
            )

    def _dirty(self, tree: Tree) -> bool:
        head = self._trees[self._head]
        return tree.keys() != head.keys() or any(not node.same(head[path]) for path, node in tree.items())

    def _unsaved(self, present: Tree) -> bool:
        """True if undo would go back to the head: a change of git's own is none."""
        return any(not in_git(change.path) for change in changes_between(self._trees[self._head], present))

    def undo(self, count: int = 1) -> RestoreResult:
        started = time.perf_counter()
        with self._lock:
            present, origin, saved = scan(self.path), self._head, None
            if self._unsaved(present):
                saved = self._add(present, "automatic", None, None, None).id
                self._redo = []
            if saved is None and self._row(self._head).parent is None:
                raise NothingToDoError("there is no earlier state", "`plyfs log` shows what there is")
            for _ in range(count):
                parent = self._row(self._head).parent
                if parent is None:
                    break
                self._redo.insert(0, self._head)
                self._head = parent
            return self._go(present, origin, saved, started)

    def redo(self, count: int = 1) -> RestoreResult:
        started = time.perf_counter()
        with self._lock:
            present, origin = scan(self.path), self._head
            if not self._redo or self._unsaved(present):
                raise NothingToDoError("there is no state to go forward to", "`plyfs log` shows what there is")
            for _ in range(count):
                if self._redo:
                    self._head = self._redo.pop(0)
            return self._go(present, origin, None, started)

    def _go(self, present: Tree, origin: str, saved: str | None, started: float, git: bool = False) -> RestoreResult:
        target = self._trees[self._head]
        changes = [change for change in changes_between(present, target) if git or not in_git(change.path)]
        put(self.path, target, present, lambda path: not git and in_git(path))
        self._save()
        return RestoreResult(self._head, origin, saved, changes, [], time.perf_counter() - started)

    def restore(
        self,
        checkpoint: str,
        paths: list[str] | None = None,
        dry_run: bool = False,
        force: bool = False,
        with_git: bool = False,
        fingerprint: str | None = None,
        mine: Mapping[str, int | None] | None = None,
    ) -> RestoreResult:
        started = time.perf_counter()
        with self._lock:
            present, origin = scan(self.path), self._head
            target = self._resolve(checkpoint)
            if self._trees[target].get("damaged") is not None:
                raise DamagedError(f"checkpoint {target} has no bytes for damaged", "run `plyfs fsck`")
            now = self._fingerprint(present, target)
            if fingerprint not in (None, now):
                raise ConflictError("the workspace has changed since the preview", "look at the preview again")
            wanted = self._wanted(present, target, paths, with_git)
            changes = changes_between(present, wanted)
            kept = [Kept(path, "git") for path in present if in_git(path) and not with_git]
            if dry_run:
                return RestoreResult(origin, origin, None, changes, kept, time.perf_counter() - started, now)
            saved = self._add(present, "automatic", None, None, None).id if self._dirty(present) else None
            put(self.path, wanted, present, lambda path: False)
            if paths is None:
                self._head, self._redo = target, []
            self._save()
            return RestoreResult(self._head, origin, saved, changes, kept, time.perf_counter() - started, now)

    def _wanted(self, present: Tree, target: str, paths: list[str] | None, with_git: bool) -> Tree:
        def asked(path: str) -> bool:
            named = paths is None or any(path == one or path.startswith(one + "/") for one in paths)
            return named and (with_git or not in_git(path))

        then = self._trees[target]
        for one in paths or []:
            if not any(path == one or path.startswith(one + "/") for path in (*then, *present)):
                raise UnknownCheckpointError(f"{one} is neither in checkpoint {target} nor here")
        left = {path: node for path, node in present.items() if not asked(path)}
        wanted = {path: node for path, node in then.items() if asked(path)}
        for path in list(wanted):
            while (path := os.path.dirname(path)) and path not in left:
                wanted.setdefault(path, then[path])
        return left | wanted

    def _fingerprint(self, present: Tree, target: str) -> str:
        seen = hashlib.blake2b(target.encode(), digest_size=8)
        for path in sorted(present):
            seen.update(os.fsencode(path) + b"\0" + repr(present[path]).encode())
        return seen.hexdigest()

    # Looking

    def log(self, session: str | None = None) -> LogResult:
        with self._lock:
            rows = [row for row in self._rows if session is None or row.session in (None, session)]
            return LogResult(self._head, rows, self._dirty(scan(self.path)), list(self._redo))

    def diff(self, a: str | None = None, b: str | None = None, patch: bool = False, stat: bool = False) -> DiffResult:
        self._dawdle()
        with self._lock:
            before = self._trees[self._resolve(a) if a is not None else self._head]
            after = self._trees[self._resolve(b)] if b is not None else scan(self.path)
        changes = changes_between(before, after)
        texts = {}
        for change in changes:
            old, new = before.get(change.source or change.path), after.get(change.path)
            texts[change.path] = [
                [] if node is None else os.fsdecode(node.data).splitlines(keepends=True) for node in (old, new)
            ]
        result = DiffResult(changes)
        if patch:
            pieces = [
                "".join(difflib.unified_diff(old, new, f"a/{path}", f"b/{path}")) for path, (old, new) in texts.items()
            ]
            result = msgspec.structs.replace(result, patch="".join(pieces))
        if stat:
            lines = {}
            for path, (old, new) in texts.items():
                told = list(difflib.ndiff(old, new))
                lines[path] = (sum(line[0] == "+" for line in told), sum(line[0] == "-" for line in told))
            result = msgspec.structs.replace(result, lines=lines)
        return result

    def _dawdle(self) -> None:
        try:
            with open(os.path.join(self.path, ".slow")) as file:
                time.sleep(float(file.read()))
        except FileNotFoundError:
            pass

    def drift(self) -> DiffResult:
        if os.path.exists(os.path.join(self.path, ".broken")):
            raise ZeroDivisionError("a bug")
        with self._lock:
            return DiffResult(changes_between(scan(self.path), self._trees[self._head]))

    def status(self) -> StatusResult:
        with self._lock:
            present = scan(self.path)
            changed, unsaved = len(changes_between(self._trees[self._head], present)), self._unsaved(present)
            return StatusResult(
                self.path,
                "fuse",
                "fake",
                not self._over.is_set(),
                self.path,
                self._head,
                changed > 0,
                changed,
                sum(len(node.data) for tree in self._trees.values() for node in tree.values()),
                [],
                [],
                "" if unsaved or self._row(self._head).parent else "there is no earlier state",
                "" if self._redo and not unsaved else "there is no state to go forward to",
            )

    def _node(self, checkpoint: str, path: str) -> Node | None:
        tree = self._trees[self._resolve(checkpoint)]
        return Node("directory", 0o755, b"", 0) if path == "" else tree.get(path)

    def cat(self, checkpoint: str, path: str, offset: int = 0, length: int | None = None) -> bytes:
        with self._lock:
            node = self._node(checkpoint, path)
        if node is None or node.kind != "file":
            raise UnknownCheckpointError(f"{checkpoint} has no file {path}", "`plyfs ls` lists what it has")
        return node.data[offset:] if length is None else node.data[offset : offset + length]

    def ls(self, checkpoint: str, path: str = "") -> list[ListedEntry]:
        with self._lock:
            node = self._node(checkpoint, path)
            tree = self._trees[self._resolve(checkpoint)]
        if node is None or node.kind != "directory":
            raise UnknownCheckpointError(f"{checkpoint} has no directory {path}", "`plyfs ls` lists what it has")
        return [
            ListedEntry(
                os.path.basename(name),
                node.kind,
                node.mode,
                len(node.data),
                0.0,
                os.fsdecode(node.data) if node.kind == "symlink" else None,
            )
            for name, node in sorted(tree.items())
            if os.path.dirname(name) == path
        ]

    def unmount(self, how: Literal["apply", "keep", "discard"] = "apply", lazy: bool = False) -> UnmountResult:
        started = time.perf_counter()
        self._dawdle()
        with self._lock:
            if os.path.exists(os.path.join(self.path, ".busy")) and not lazy:
                raise ConflictError("sleep (4242) has busy open", "end it, or use --lazy")
            saved = None
            present = scan(self.path)
            if how == "discard" and self._dirty(present):
                saved = self._add(present, "automatic", None, None, None).id
                self._head = self._rows[0].id
                put(self.path, self._trees[self._head], present, lambda path: False)
                self._save()
            self._over.set()
            applied = len(changes_between(self._trees[self._rows[0].id], present)) if how == "apply" else 0
            return UnmountResult(how, self._head, saved, applied, [], None, time.perf_counter() - started)


def open_fake(options: ServeOptions, listener: Listener) -> FakeWorkspace:
    """An ``Opener`` for the daemon."""
    if options.mode == "scan":
        raise RefusedError("the fake does not scan", "use --mode fuse")
    state = Registry().path(options.workspace, "fake")
    return FakeWorkspace(options.workspace, state, listener)
