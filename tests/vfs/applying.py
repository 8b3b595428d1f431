"""Applying in tests: the whole of it as the unmount does, and as a step to translate through."""

from __future__ import annotations

import os

from tests.vfs.overlay import World
from vfs.apply.effects import Effects
from vfs.apply.whole import Applied, apply, finish
from vfs.trees.translate import Step
from vfs.trees.view import View


class Crash(BaseException):
    """The machine stopped."""


class Stopping(Effects):
    """Effects of which only the first ``allowed`` happen."""

    def __init__(self, allowed: int) -> None:
        super().__init__()
        self.allowed = allowed
        self.made = 0

    def step(self) -> None:
        if self.made >= self.allowed:
            raise Crash
        self.made += 1


def paths(world: World) -> tuple[bytes, bytes]:
    return os.fsencode(world.work), os.fsencode(world.attic)


def run(world: World, view: View, effects=None, **options) -> Applied | None:
    work, attic = paths(world)
    applied = apply(view, world.host, world.contents, world.objects, work, attic, effects=effects, **options)
    if applied is not None:
        finish(work, world.base_fd, attic, effects)
        world.host.open_attic(attic)
    return applied


def step_of(world: World, view: View, applied: Applied) -> Step:
    return Step(view, View.load(world.pages, world.host, world.objects, applied.inverse))
