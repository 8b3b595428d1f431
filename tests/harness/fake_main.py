"""plyfs with the fake workspace behind it: the command line, and the daemon that it starts.

Run as a file, as ``harness/__main__.py`` is.
"""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from harness import launch


def main() -> int:
    launch.ENTRY = os.path.abspath(__file__)
    if sys.argv[1:2] == ["daemon"]:
        from harness.systems import system

        system.detach()
        from harness.daemon import main as daemon_main
        from tests.fakes.workspace import open_fake

        return daemon_main(sys.argv[2:], open_fake)
    if "--foreground" in sys.argv:
        from harness import serving
        from tests.fakes.workspace import open_fake

        serving.open_workspace = open_fake  # type: ignore[assignment]
    from harness.cli import main as cli_main

    return cli_main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
