"""Keeping a daemon from reading its own code through its own mount.

If plyfs or its Python is installed in the workspace that is served (a project's ``.venv``), an import or a traceback
after the mount would ask the daemon for its own source, in the thread that should answer: it would wait for ever. So
in that case all modules are loaded before, and tracebacks do without source lines.
"""

from __future__ import annotations

import importlib
import importlib.util
import linecache
import logging
import os
import pkgutil
import sys
from typing import TYPE_CHECKING

from harness.registry import is_below

if TYPE_CHECKING:
    from harness.serving import ServeOptions

log = logging.getLogger("plyfs.preload")

PACKAGES = ("store", "vfs", "harness")
BESIDE = ("difflib", "encodings.idna", "psutil", "pathspec", "multiprocessing", "concurrent.futures", "subprocess")


def shield(options: ServeOptions) -> None:
    """Load everything now, if later it would be loaded through the mount."""
    covered = options.mountpoint or options.workspace
    places = {os.path.realpath(place) for place in (*sys.path, sys.prefix, sys.base_prefix) if place}
    if not any(is_below(place, covered) for place in places):
        return
    log.info("plyfs is installed in the workspace: all of it is loaded now")
    for name in (*BESIDE, *modules()):
        try:
            importlib.import_module(name)
        except ImportError as error:
            log.debug("not loaded: %s (%s)", name, error)
    linecache.updatecache = lambda *_, **__: []


def modules() -> list[str]:
    """Every module of plyfs but the ones that run when imported."""
    found = []
    for package in PACKAGES:
        spec = importlib.util.find_spec(package)
        assert spec is not None
        for module in pkgutil.walk_packages(spec.submodule_search_locations, f"{package}."):
            if not module.name.endswith("__main__"):
                found.append(module.name)
    return found
