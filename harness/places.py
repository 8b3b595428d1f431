"""Where plyfs keeps what is a user's: the store with the runtime directory, and the configuration.

Knows only the standard library, because every command starts with it. Only says where; makes and reads nothing.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


def home_directory(environment: Mapping[str, str] = os.environ) -> str:
    """The store and runtime root: ``PLYFS_HOME``, else ``plyfs`` in the user's state directory."""
    given = environment.get("PLYFS_HOME")
    if given:
        return os.path.abspath(given)
    if sys.platform not in ("darwin", "win32"):
        # What platformdirs answers here, without the 20 ms that importing it takes.
        state = environment.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
        return os.path.join(state, "plyfs")
    import platformdirs

    return platformdirs.user_state_dir("plyfs", appauthor=False)


def config_path(environment: Mapping[str, str] = os.environ) -> str:
    """``config.toml`` in the user's configuration directory."""
    given = environment.get("XDG_CONFIG_HOME")
    if given and os.path.isabs(given):
        return os.path.join(given, "plyfs", "config.toml")
    if sys.platform not in ("darwin", "win32"):
        # What platformdirs answers here, without the 20 ms that importing it takes.
        return os.path.join(os.path.expanduser("~"), ".config", "plyfs", "config.toml")
    import platformdirs

    return os.path.join(platformdirs.user_config_dir("plyfs", appauthor=False), "config.toml")
