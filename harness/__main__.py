"""The file that Python runs: the command line, or with ``daemon`` as first argument the daemon.

Owns two things that must come before anything else is imported: where the packages are found, since daemons start with
``-P`` so that a workspace with a ``store`` or ``json.py`` of its own cannot be imported by chance; and the fork that
makes the daemon a child of nobody.
"""

import os
import sys

READY_DESCRIPTOR = 3

if not __package__:
    sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def detach() -> None:
    """Leave the parent, which waits for this process alone, and all that it had open but the readiness pipe.

    A pipe of its that stayed open here would keep its reader waiting for as long as the daemon lives. The session is
    our own already.
    """
    if os.fork():
        os._exit(0)
    os.closerange(READY_DESCRIPTOR + 1, 1 << 20)


def main() -> int:
    """Run what the arguments say; returns the exit status."""
    if sys.argv[1:2] == ["daemon"]:
        detach()
        from harness.daemon import main as daemon_main

        return daemon_main(sys.argv[2:])
    from harness.cli import main as cli_main

    return cli_main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
