"""The command line: finds the command, lets it run, and turns every failure into words and an exit status.

Owns the options that all have, and the last ``except``. Imports nothing but what every command needs: ``plyfs --help``
and ``plyfs status`` must start fast. Each command is a module of ``commands`` with ``configure(parser)`` and
``run(invocation)``.
"""

from __future__ import annotations

import os
import sys

from harness.commands import COMMANDS, EXITS
from harness.failure import OK, PlyfsError, exit_status
from harness.language import load, told


def usage() -> str:
    """The text of ``plyfs --help``."""
    rows = "\n".join(f"  {name:<11} {told(what)}" for name, (_, what) in COMMANDS.items())
    return told(f"""\
usage: plyfs [-C PATH] [--json] COMMAND ...

A copy-on-write layer under a workspace: checkpoint, undo and redo in milliseconds, whatever made the change.

{rows}

  -C PATH     the workspace, or a path in it (default: the current directory, searched upward)
  --json      print one JSON object, errors too
  --version   print the version
  -h, --help  this, or after a command its own help

CHECKPOINT is an id, a unique prefix of 4 or more of its characters, a label, @ (the head), @~N (its Nth ancestor),
or base. PLYFS_HOME names the store; `plyfs config` shows the settings.

{told(EXITS)}
""")


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _main(words)
    except PlyfsError as error:
        return fail(error, _wants_json(words))
    except KeyboardInterrupt:
        sys.stderr.write(told("interrupted") + "\n")
        return 130
    except BrokenPipeError:
        # Whoever read our output has gone. Python would complain again when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 141
    except Exception as error:
        return fail(_told(error), _wants_json(words))


def _main(words: list[str]) -> int:
    leading, name, rest = split(words)
    if name is None:
        if "--version" in leading:
            from harness.version import VERSION

            sys.stdout.write(f"plyfs {VERSION}\n")
            return OK
        if "--help" in leading or "-h" in leading:
            sys.stdout.write(usage())
            return OK
        sys.stderr.write(usage())
        return exit_status("usage")
    if name not in COMMANDS:
        raise PlyfsError("usage", f"there is no command {_nearest(name)}", "`plyfs --help` lists the commands")
    home = os.environ.get("PLYFS_HOME")
    if home:
        # Commands and daemons change their directory.
        os.environ["PLYFS_HOME"] = os.path.abspath(home)
    from harness.invocation import parse

    invocation = parse(name, leading + rest)
    if invocation is None:
        return OK
    status: int = invocation.module.run(invocation)
    return status


def split(words: list[str]) -> tuple[list[str], str | None, list[str]]:
    """The options before the command, the command, and what follows it."""
    place = 0
    while place < len(words):
        word = words[place]
        if not word.startswith("-") or word == "-":
            return words[:place], word, words[place + 1 :]
        place += 2 if word == "-C" else 1
    return words, None, []


def _nearest(name: str) -> str:
    import difflib

    close = difflib.get_close_matches(name, COMMANDS, 1)
    return f"{name!r}: did you mean {close[0]!r}?" if close else f"{name!r}"


def _wants_json(words: list[str]) -> bool:
    own = words[: words.index("--")] if "--" in words else words
    return "--json" in own


def fail(error: PlyfsError, as_json: bool) -> int:
    """Tell of ``error``; returns its exit status."""
    from harness.terminal import Terminal, shown

    terminal = Terminal(as_json)
    if as_json:
        # Who runs commands for a person, as the agents' extension does, has errors told in that person's language.
        catalogue = load(os.environ.get("PLYFS_ERROR_LANGUAGE", "en"))
        terminal.result({"error": (error.translated(catalogue.told) if catalogue else error).body()})
    else:
        lines = [line if line.isprintable() else shown(line) for line in error.message.splitlines()]
        terminal.note("plyfs: " + "\n".join(lines))
        if error.hint:
            terminal.note(f"hint: {error.hint}")
    return exit_status(error.code)


def _told(error: Exception) -> PlyfsError:
    """``error`` as a failure to tell of; a bug is shown with its traceback."""
    from harness.messages import failure_of

    failure = failure_of(error)
    if failure.code == "internal":
        import traceback

        traceback.print_exc()
    return failure


if __name__ == "__main__":
    sys.exit(main())
