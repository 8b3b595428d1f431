"""Small steps of a user, chosen by chance but the same for the same seed, on a workspace beside its plain model."""

from __future__ import annotations

import random
import stat

from tests.model.bases import NAMES
from tests.model.machine import Rig
from tests.model.plain import DIR, LNK, REG, walk


def step(rig: Rig, rng: random.Random) -> None:
    """One change of the tree, done by both."""
    directories = rig.directories()
    path, node = rng.choice(directories)
    name = rng.choice([*sorted(node.entries), *NAMES[:4]])
    files = [(where, file) for where, file in rig.files() if where is not None]
    match rng.randrange(10):
        case 0 | 1:
            kind = rng.choice([REG, REG, DIR, LNK, stat.S_IFIFO])
            rig.make(path, name, kind)
        case 2 | 3 | 4 if files:
            rig.write(*rng.choice(files), rng.choice([0, 10, 300]), rng.randbytes(rng.choice([5, 400])))
        case 5 if files:
            rig.truncate(*rng.choice(files), rng.choice([0, 20, 600]))
        case 6:
            other_path, other = rng.choice(directories)
            rig.rename(path, name, other_path, rng.choice([*sorted(other.entries), *NAMES[:4]]), rng.choice([0, 0, 2]))
        case 7:
            rig.remove(path, name, rng.random() < 0.3)
        case 8 if files:
            rig.link(*rng.choice(files), path, name)
        case _:
            where, chosen = rng.choice([(where, one) for where, one in walk(rig.plain.root) if one.kind != LNK])
            rig.set(where, chosen, mode=rng.choice([0o600, 0o755]))


def steps(rig: Rig, rng: random.Random, count: int) -> None:
    """Several changes."""
    for _ in range(count):
        step(rig, rng)
