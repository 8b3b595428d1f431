"""The commands, one module for each or for a few that belong together: what there is, and how they end."""

from __future__ import annotations

COMMANDS = {
    "mount": ("mount", "serve a workspace in place; returns once it is served"),
    "run": ("run", "mount, run one command in it, unmount"),
    "unmount": ("unmount", "stop serving, and apply, keep or discard the changes"),
    "checkpoint": ("checkpoint", "seal what has changed since the last one"),
    "undo": ("travel", "go to the previous state"),
    "redo": ("travel", "go forward again"),
    "restore": ("travel", "go to any checkpoint, or bring back paths of it"),
    "log": ("log", "the tree of checkpoints"),
    "diff": ("diff", "what changed between two states"),
    "drift": ("diff", "what restoring the head would change now"),
    "status": ("status", "where the workspace stands"),
    "cat": ("look", "a file as a checkpoint has it"),
    "ls": ("look", "a directory as a checkpoint has it"),
    "fsck": ("fsck", "verify the store"),
    "gc": ("gc", "collect what the retention rules do not keep"),
    "doctor": ("doctor", "find and mend stale mounts, locks and daemons"),
    "install": ("install", "put the extension into a coding agent: pi or omp"),
    "config": ("config", "show the settings that are in force, and where they stand"),
}
"""Each command's module and what it does."""

EXITS = """\
Exit status: 0 done, 1 failed, 2 usage, 3 nothing to undo or redo, 4 refused so as not to lose work,
5 not a workspace or not mounted, 6 the store is damaged, 7 another daemon owns the workspace."""
