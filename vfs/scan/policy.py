"""What a scan captures: the policy that is stored with each checkpoint that it makes.

Concurrency: values.
"""

from __future__ import annotations

from typing import NamedTuple


class Policy(NamedTuple):
    """What is captured: ``rules`` "git" leaves out what git ignores; ``max_bytes`` 0 sets no limit on a file's size."""

    rules: str = "git"
    max_bytes: int = 0
