"""The file that Python runs: the command line, or with ``daemon`` as first argument the daemon.

Owns what must come before anything else is imported: where the packages are found, since daemons start with ``-P`` so
that a workspace with a ``store`` or ``json.py`` of its own cannot be imported by chance; and that the daemon is a child
of nobody before it has threads.
"""

import os
import sys

if not __package__:
    sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def main() -> int:
    """Run what the arguments say; returns the exit status."""
    if sys.argv[1:2] == ["daemon"]:
        from harness.systems import system

        system.detach()
        from harness.daemon import main as daemon_main

        return daemon_main(sys.argv[2:])
    from harness.cli import main as cli_main

    return cli_main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
