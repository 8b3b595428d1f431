"""The plain model of the Workspace protocol: checkpoints, undo, redo, restores, and a start after whatever end.

``Story`` makes each step with a served workspace and with the model, and compares. Two subclasses say what is served:
``tests.model.machine.Rig`` the live tree of a mount, ``tests.scan.rig.ScanRig`` a scanned directory.
"""

from __future__ import annotations

from tests.model.compare import expect
from tests.model.plain import DIR, Node, Plain, clone, differs, pick, walk
from vfs.workspace import NothingToDoError


class Story:
    """What a workspace was at each checkpoint, where it stands, and the way forward from there."""

    plain: Plain
    """What it is now."""
    snaps: dict[str, Node]
    baseline: Node
    """What the head stands for, as the last move left it."""
    redo_way: list[str]

    def begin(self) -> None:
        """It is served for the first time."""
        self.snaps = {self.head: clone(self.plain.root, {})}
        self.baseline = self.snaps[self.head]
        self.redo_way = []

    # What is served, in a subclass

    @property
    def head(self) -> str:
        raise NotImplementedError

    @property
    def history(self):
        """``store.history.History``."""
        raise NotImplementedError

    def way_forward(self) -> list[str]:
        raise NotImplementedError

    def tick(self) -> int:
        """The time at which the next step is made."""
        raise NotImplementedError

    def is_unsaved(self) -> bool:
        """What the served workspace itself says: does the present differ from the head, but for ``.git``?"""
        raise NotImplementedError

    def tree_of(self, id: str, with_git: bool) -> Node:
        """What a restore of the checkpoint should make of the present."""
        raise NotImplementedError

    def do_checkpoint(self, label: str | None):
        raise NotImplementedError

    def do_undo(self, count: int):
        raise NotImplementedError

    def do_redo(self, count: int):
        raise NotImplementedError

    def do_restore(self, id: str, with_git: bool):
        raise NotImplementedError

    def would_change(self, id: str, paths: list[bytes]) -> bool:
        """What the preview of ``do_restore_paths`` says."""
        raise NotImplementedError

    def do_restore_paths(self, id: str, paths: list[bytes]):
        raise NotImplementedError

    def become(self, onto: Node, now: int) -> None:
        """The model becomes ``onto`` as a restore at ``now`` makes it; what only shows afterwards is taken over."""
        raise NotImplementedError

    def certainly_differ(self, a: Node, b: Node, skip_git: bool = False) -> bool:
        """True if a checkpoint of ``b`` must be another one than that of ``a``."""
        return differs(a, b, skip_git)

    # Choosing

    def directories(self) -> list[tuple[bytes, Node]]:
        return [(path, node) for path, node in walk(self.plain.root) if node.kind == DIR]

    def leaves(self) -> list[tuple[bytes, Node]]:
        return [(path, node) for path, node in walk(self.plain.root) if node.kind != DIR]

    # Checkpoints and moves

    def snap(self, id: str, root: Node) -> None:
        self.snaps[id] = clone(root, {})

    def checkpoint(self, label: str | None = None) -> str:
        self.tick()
        head = self.head
        result = self.do_checkpoint(label)
        if self.certainly_differ(self.baseline, self.plain.root):
            expect(result.created, "a checkpoint of changes")
        if result.created:
            expect(result.parent == head, "the parent is the head before")
            self.snap(result.id, self.plain.root)
            self.baseline = self.snaps[result.id]
            self.redo_way = []
        expect(self.head == result.id, "the head is the checkpoint")
        return result.id

    def undo(self, count: int = 1) -> None:
        dirty = self.is_unsaved()
        if self.certainly_differ(self.baseline, self.plain.root, skip_git=True):
            expect(dirty, "the present differs from the head")
        left = count - dirty
        target = self.history.get(self.head)
        way = [] if dirty else self.redo_way
        while left and (parent := target.parent) is not None:
            if target.kind != "hidden":
                way = [target.id, *way]
                left -= 1
            target = self.history.get(parent)
        if left == count:
            self._nothing(lambda: self.do_undo(count), "undo")
            return
        head = self.head
        saved = self._move(lambda: self.do_undo(count), target.id)
        if saved and not dirty:  # only commits came after the head
            way = [saved if one == head else one for one in way]
        self.redo_way = [*way, *([saved] if saved and dirty else [])]
        expect(self.way_forward() == self.redo_way, "the way forward:", self.way_forward(), self.redo_way)

    def redo(self, count: int = 1) -> None:
        if not self.redo_way:
            self._nothing(lambda: self.do_redo(count), "redo")
            return
        steps = min(count, len(self.redo_way))
        target, way = self.redo_way[steps - 1], self.redo_way[steps:]
        self._move(lambda: self.do_redo(count), target)
        self.redo_way = way
        expect(self.way_forward() == way, "the way forward")

    def restore(self, id: str, with_git: bool = False) -> None:
        self._move(lambda: self.do_restore(id, with_git), id, with_git)
        self.redo_way = []
        expect(not self.way_forward(), "no way forward")

    def restore_paths(self, id: str, paths: list[bytes]) -> None:
        onto = pick(self.plain.root, self.snaps[id], paths)
        if not self.would_change(id, paths):
            expect(not self.certainly_differ(onto, self.plain.root), "paths that are as they were")
            known, head = {one.id for one in self.history.all()}, self.head
            self.do_restore_paths(id, paths)
            expect(self.head == head and {one.id for one in self.history.all()} == known, "nothing happens")
            return
        self._move(lambda: self.do_restore_paths(id, paths), None, onto=onto)
        self.redo_way = []

    @staticmethod
    def _nothing(move, what: str) -> None:
        try:
            move()
        except NothingToDoError:
            return
        expect(False, f"there was nothing to {what}")

    def _move(self, make, target: str | None, with_git: bool = False, onto: Node | None = None) -> str | None:
        """Make a move and let the model make it; the visible checkpoint that was saved, if one was.

        Without ``target`` it brings paths, and ``onto`` is what comes of that.
        """
        now = self.tick()
        before = self.head
        known = {one.id for one in self.history.all()}
        was = clone(self.plain.root, {})
        must_save = all(self.certainly_differ(one, self.plain.root) for one in (self.baseline, self.snaps[before]))
        if onto is None:
            assert target is not None
            onto = self.tree_of(target, with_git)
        moved = make()
        expect(moved.origin == before, "moved from the head")
        new = [one for one in self.history.all() if one.id not in known]
        saved = [one for one in new if one.kind in ("automatic", "hidden")]
        if must_save:
            expect(bool(saved), "the present is saved first")
        for one in saved:
            self.snap(one.id, was)
        made = [one.id for one in new if one.kind == "user"]
        if target is None:
            expect(len(made) == 1, "a checkpoint of the paths")
            target = made[0]
        else:
            expect(not made, "no checkpoint that nobody asked for:", made)
        self.become(onto, now)
        if made:
            self.snap(target, onto)
        expect(self.head == target, "the head is the target")
        self.baseline = clone(self.plain.root, {})
        visible = [one.id for one in saved if one.kind == "automatic"]
        expect(moved.saved == (visible[0] if visible else None), "what was saved is told")
        return visible[0] if visible else None

    # Starting again

    def as_before(self, head: str, redo: list[str]) -> None:
        """It was started again, and stands where it stood."""
        expect(self.head == head, "the head is the same")
        expect(self.way_forward() == redo, "the way forward is the same")
        known = {one.id for one in self.history.all()}
        expect(known == set(self.snaps), "checkpoints:", known ^ set(self.snaps))
