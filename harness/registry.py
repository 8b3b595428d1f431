"""Which workspaces are served now, by which process, at which socket: one small file for each in the runtime directory.

Owns the runtime directory: the entries, their locks, the sockets' paths. Does not start, stop or mend
daemons (``launch``, ``doctor``). Knows only the standard library and a few modules of it, because every command starts
here. Never calls stat(2) on a path that an entry covers: a mount whose daemon has died or hangs must not stop us.

Concurrency: entries are replaced by rename. A daemon holds ``Claim(..., "owner")`` as long as it lives, so an entry
whose claim is free belongs to a dead one; whoever starts or mends holds ``Claim(..., "starter")`` meanwhile.
"""

from __future__ import annotations

import os
import sys

from harness import quick_json
from harness.endpoint import Endpoint
from harness.failure import PlyfsError
from harness.places import home_directory
from harness.systems import system

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType

ENTRY_VERSION = 1
SOCKET_PATH_MAX = 100
"""Longest socket path in bytes that every system takes (the limit is 104 to 108)."""
LINKS_MAX = 40

_CLOEXEC = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


def key_of(path: str) -> str:
    """16 hexadecimal digits that stand for ``path``: FNV-1a, because importing hashlib costs more than all of this."""
    value = 0xCBF29CE484222325
    for byte in os.fsencode(path):
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return f"{value:016x}"


def process_start(pid: int) -> str | None:
    """A word for when process ``pid`` started, which tells a reused pid; None if there is none, or a zombie.

    The same that ``store.lock`` has, whose imports every command would pay for.
    """
    if sys.platform != "linux":
        from store.lock import process_start as portable

        return portable(pid)
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in (b"Z", b"X") else fields[19].decode()


class Entry:
    """One served workspace. ``request`` is what it was asked to serve, so that it can be asked again after a crash."""

    __slots__ = (
        *("channel", "mode", "mountpoint", "pid", "request", "socket", "start_time", "state", "token", "workspace"),
    )

    def __init__(
        self,
        workspace: str,
        mountpoint: str | None,
        socket: str,
        pid: int,
        start_time: str | None,
        mode: str,
        channel: str | None,
        state: str,
        request: dict[str, object],
        token: str | None = None,
    ) -> None:
        self.workspace = workspace
        self.mountpoint = mountpoint
        self.socket = socket
        self.token = token
        self.pid = pid
        self.start_time = start_time
        self.mode = mode
        self.channel = channel
        self.state = state
        self.request = request

    def to_json(self) -> bytes:
        """The bytes of its file: text with surrogate escapes, all ASCII."""
        fields = {"version": ENTRY_VERSION, **{name: getattr(self, name) for name in self.__slots__}}
        return quick_json.dumps(fields).encode() + b"\n"

    @classmethod
    def from_json(cls, data: bytes) -> Entry | None:
        """The entry in ``data``, None if that is not one of this version."""
        try:
            fields = quick_json.loads(data)
            if fields.pop("version") != ENTRY_VERSION or not isinstance(fields["pid"], int):
                return None
            return cls(**fields)
        except (ValueError, KeyError, TypeError, AttributeError):
            return None

    @property
    def endpoint(self) -> Endpoint:
        """Where its daemon listens."""
        return Endpoint(self.socket, self.token)

    def is_alive(self) -> bool:
        """True while the process that wrote this entry lives."""
        started = process_start(self.pid)
        return started is not None and started == self.start_time


class Registry:
    """The entries in one runtime directory."""

    def __init__(self, directory: str | None = None) -> None:
        self.directory = os.path.join(home_directory(), "run") if directory is None else directory

    def create(self) -> None:
        """Make the directory, private. Raises PlyfsError if it belongs to somebody else."""
        create_private(self.directory)

    def path(self, workspace: str, suffix: str) -> str:
        """The file of ``workspace`` that ends in ``suffix``."""
        return os.path.join(self.directory, f"{key_of(workspace)}.{suffix}")

    def socket_path(self, workspace: str) -> str:
        """Where the daemon of ``workspace`` listens: in the runtime directory, unless that path is too long."""
        path = self.path(workspace, "sock")
        if len(os.fsencode(path)) <= SOCKET_PATH_MAX:
            return path
        top = os.environ.get("XDG_RUNTIME_DIR", "")
        if not top or len(os.fsencode(top)) > 50:
            top = "/tmp"
        return os.path.join(top, f"plyfs-{system.user_id()}", f"{key_of(path)}.sock")

    def read(self, path: str) -> Entry | None:
        """The entry whose workspace or mount point is ``path``."""
        entry = self._read(self.path(path, "json"))
        if entry is None or path in (entry.workspace, entry.mountpoint):
            return entry
        return None

    def _read(self, file_path: str) -> Entry | None:
        try:
            with open(file_path, "rb") as file:
                data = file.read()
        except FileNotFoundError:
            return None
        except PermissionError as error:
            raise PlyfsError(
                "failed",
                f"{self.directory} cannot be read: {error.strerror}",
                "it belongs to another user: set PLYFS_HOME to a directory of your own",
            ) from None
        return Entry.from_json(data)

    def find(self, path: str) -> Entry | None:
        """The entry that covers ``path``: the outermost of its ancestors, or itself, that is served.

        Follows symbolic links on the way, but looks at nothing below a served directory.
        """
        if not os.path.isdir(self.directory):
            return None
        if system.IS_WINDOWS:
            return self._find_by_real_path(path)
        absolute = path if path.startswith("/") else os.path.join(current_directory(), path)
        waiting = [part for part in absolute.split("/") if part not in ("", ".")][::-1]
        done = "/"
        links = 0
        while waiting:
            part = waiting.pop()
            if part == "..":
                done = os.path.dirname(done)
                continue
            step = os.path.join(done, part)
            entry = self.read(step)
            if entry is not None:
                if not _leaves(waiting):
                    return entry
                done = os.path.dirname(step)
                continue
            try:
                target = os.readlink(step)
            except OSError:
                done = step
                continue
            links += 1
            if links > LINKS_MAX:
                raise PlyfsError("usage", f"{path}: too many symbolic links")
            waiting.extend(part for part in target.split("/")[::-1] if part not in ("", "."))
            if target.startswith("/"):
                done = "/"
        return None

    def _find_by_real_path(self, path: str) -> Entry | None:
        """As ``find``, where no mount can hang, and a path has many spellings."""
        step = os.path.realpath(path)
        found = None
        while True:
            found = self.read(step) or found
            above = os.path.dirname(step)
            if above == step:
                return found
            step = above

    def all(self) -> list[Entry]:
        """Every entry, in the order of the workspaces' paths."""
        found: dict[str, Entry] = {}
        for name in self.names(".json"):
            entry = self._read(os.path.join(self.directory, name))
            if entry is not None:
                found[entry.workspace] = entry
        return [found[path] for path in sorted(found)]

    def names(self, suffix: str) -> list[str]:
        """The files in the directory whose name ends in ``suffix``."""
        try:
            return sorted(name for name in os.listdir(self.directory) if name.endswith(suffix))
        except FileNotFoundError:
            return []

    def write(self, entry: Entry) -> None:
        """Publish ``entry``, under its mount point too if that is another path."""
        data = entry.to_json()
        for path in {entry.workspace, entry.mountpoint or entry.workspace}:
            file_path = self.path(path, "json")
            temporary = f"{file_path}.{os.getpid()}.new"
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _CLOEXEC, 0o600)
            with open(descriptor, "wb") as file:
                file.write(data)
            os.replace(temporary, file_path)

    def remove(self, entry: Entry) -> None:
        """Withdraw ``entry`` and its socket, unless another process has written the entry anew meanwhile."""
        for path in {entry.workspace, entry.mountpoint or entry.workspace}:
            current = self.read(path)
            if current is not None and (current.pid, current.start_time) == (entry.pid, entry.start_time):
                unlink_if_there(self.path(path, "json"))
        if self.read(entry.workspace) is None and entry.endpoint.path is not None:
            unlink_if_there(entry.endpoint.path)


def _leaves(waiting: list[str]) -> bool:
    """True if the parts that wait, the next one last, lead out of where we are; then all are taken up to there."""
    depth = 1
    for place in range(len(waiting) - 1, -1, -1):
        depth += -1 if waiting[place] == ".." else 1
        if depth == 0:
            del waiting[place:]
            return True
    return False


class Claim:
    """A lock on one workspace that ends with its holder, however that dies."""

    def __init__(self, registry: Registry, workspace: str, role: str) -> None:
        self._path = registry.path(workspace, f"{role}.lock")
        self._descriptor = -1

    @staticmethod
    def discard(path: str) -> bool:
        """Remove the lock file at ``path`` if nobody holds it."""
        claim = Claim.__new__(Claim)
        claim._path, claim._descriptor = path, -1
        if not claim.acquire():
            return False
        claim.release()
        return True

    def acquire(self, wait: bool = False) -> bool:
        """Take it; False if another holds it and not ``wait``."""
        while True:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | _CLOEXEC, 0o600)
            try:
                if not system.lock(descriptor, wait):
                    os.close(descriptor)
                    return False
            except OSError:
                os.close(descriptor)
                raise
            # The holder before us unlinks the file as it lets go: then this lock is on nothing.
            if _same_file(descriptor, self._path):
                self._descriptor = descriptor
                return True
            os.close(descriptor)

    def release(self) -> None:
        """Let it go, and leave no file behind."""
        if self._descriptor >= 0:
            system.let_go(self._path, self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Claim:
        self.acquire(wait=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, trace: TracebackType | None) -> None:
        self.release()


def _same_file(descriptor: int, path: str) -> bool:
    try:
        there = os.stat(path)
    except FileNotFoundError:
        return False
    here = os.fstat(descriptor)
    return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)


def create_private(directory: str) -> None:
    """Make ``directory`` with mode 0700. Raises PlyfsError if it is there and somebody else's, or no directory."""
    os.makedirs(os.path.dirname(directory), mode=0o700, exist_ok=True)
    try:
        os.mkdir(directory, 0o700)
    except FileExistsError:
        pass
    status = os.lstat(directory)
    if status.st_mode & 0o170000 != 0o040000 or status.st_uid != system.user_id():
        raise PlyfsError(
            "failed",
            f"{directory} is not a directory of this user's",
            "another user or program has put it there: remove it, or set PLYFS_HOME to a directory of your own",
        )
    if status.st_mode & 0o077 and not system.IS_WINDOWS:
        os.chmod(directory, 0o700)


def is_below(path: str, directory: str) -> bool:
    """True if ``path`` is ``directory`` or lies in it. Both absolute and normal; nothing is looked at."""
    return path == directory or path.startswith(directory if directory.endswith(os.sep) else directory + os.sep)


def unlink_if_there(path: str) -> None:
    """Remove a file that may be gone already."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass


def current_directory() -> str:
    """The current directory as the kernel names it. Raises PlyfsError if it has been removed."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        raise PlyfsError(
            "not_a_workspace",
            "the current directory does not exist any more",
            "cd to a directory that exists, or use -C",
        ) from None
