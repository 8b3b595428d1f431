"""git over a repository of some size."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from bench.material import Material
from bench.steps import AS_FUSE_OVERLAYFS, CHANGE, WARM_READ, Step, command


class Repositories:
    """Clone, status, checkout between distant commits, and adding everything anew."""

    name = "git"

    def lacking(self, material: Material) -> str:
        """The repository."""
        return material.lacking.get("repository", "")

    def prepare(self, base: Path, material: Material) -> None:
        """A clone in the base."""
        command("git", "clone", "-q", "--no-hardlinks", material.repository, base / "old", cwd=base)()
        command("git", "status", cwd=base / "old")()

    def steps(self, top: Path, material: Material) -> Iterable[Step]:
        """Seconds per command."""
        old = top / "old"
        status = command("git", "status", "--porcelain", cwd=old)
        # What was read cold once is in memory for the steps that come after, whichever target is measured.
        load = command("sh", "-c", "find . -type f -exec cat {} + >/dev/null", cwd=old)
        return [
            Step("git status, cold", status, AS_FUSE_OVERLAYFS, cold=True),
            Step("git status, warm", status, WARM_READ, before=status),
            Step(
                "git checkout of a distant commit",
                command("git", "checkout", "-q", "distant", cwd=old),
                CHANGE,
                before=load,
            ),
            Step("git checkout back", command("git", "checkout", "-q", "main", cwd=old), CHANGE),
            Step(
                "git clone",
                command("git", "clone", "-q", "--no-hardlinks", material.repository, top / "new", cwd=top),
                before=command("sh", "-c", "cat .git/objects/pack/* >/dev/null", cwd=material.repository),
            ),
            Step(
                "git add -A of everything",
                command("git", "add", "-A", cwd=top / "new"),
                before=command("sh", "-c", "rm -rf .git && git init -q", cwd=top / "new"),
            ),
            Step("git commit", command("git", "commit", "-q", "-m", "all", cwd=top / "new")),
        ]
