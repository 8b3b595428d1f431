"""A dictionary that notes which keys were set, for whoever keeps it on disk bit by bit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Noted(dict[K, V]):
    """``changed`` are the keys set since whoever reads it last cleared it. Set items one by one or by ``update``."""

    __slots__ = ("changed",)

    def __init__(self) -> None:
        super().__init__()
        self.changed: set[K] = set()

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        self.changed.add(key)

    def update(self, other: Mapping[K, V]) -> None:  # type: ignore[override]
        """Take over all of ``other``."""
        super().update(other)
        self.changed.update(other)

    def replace(self, items: Iterable[tuple[K, V]]) -> None:
        """Hold just ``items``, none of them noted: they come from where the changes go."""
        self.clear()
        super().update(items)
        self.changed.clear()
