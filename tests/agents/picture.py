"""The picture of /tree with its preview, taken of the real Pi in a real terminal: ``python -m tests.agents.picture``.

Writes docs/tree-preview.svg. Nothing in it is drawn by hand: tmux gives the screen, rich turns it into a picture.
"""

from __future__ import annotations

import io
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

from tests.agents import toolchain
from tests.agents.stage import Stage, until
from tests.agents.tui import Tui
from tests.served import Plyfs

TARGET = toolchain.ROOT / "docs" / "tree-preview.svg"
WIDTH, HEIGHT = 92, 30

TURNS = {
    "add a parser": "mkdir src; echo 'def parse(text): return text.split()' > src/parser.py; echo ok > notes.md",
    "write its tests": "mkdir tests; echo 'def test_parse(): ...' > tests/test_parser.py; rm notes.md",
    "tidy up": "mv src/parser.py src/words.py; chmod +x tests/test_parser.py; mkdir build",
}
FONTS = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
"""The picture must not fetch anything."""


def shoot() -> str:
    """The screen, with its colours, as an SVG."""
    top = Path(tempfile.mkdtemp(prefix="plyfs-picture-"))
    workspace = top / "project"
    workspace.mkdir()
    (workspace / "README.md").write_text("# project\n")
    plyfs = Plyfs(measured=False)
    stage = Stage("pi", plyfs, workspace, top)
    stage.extensions = stage.extensions[:1]
    environment = stage.environment()
    names = ("HOME", "LANG", "PATH", "PI_OFFLINE", "PLYFS_COMMAND", "PLYFS_HOME", "PYTHONPATH", "XDG_CONFIG_HOME")
    command = shlex.join(stage.command())
    try:
        with Tui(
            command, cwd=workspace, env={name: environment[name] for name in names}, width=WIDTH, height=HEIGHT
        ) as tui:
            tui.wait_for("✓", timeout=60)
            for number, (title, bash) in enumerate(TURNS.items()):
                stage.model.scenario(
                    f"{number}", [{"calls": [{"tool": "bash", "args": {"command": bash}}]}, {"text": "Done."}]
                )
                tui.enter(f"{title} [[{number}]]")
                tui.wait_for("Done.", timeout=30, times=min(number + 1, 2))
                until(lambda: not _is_working(tui), 10)
            tui.enter("/tree")
            tui.wait_for("Session Tree")
            tui.keys("Up", "Up", "Up", "Up", "Up", "Up", "Enter", pause=0.1)
            tui.wait_for("No summary")
            tui.keys("Enter")
            tui.wait_for("Going there changes")
            screen = tui._tmux("capture-pane", "-p", "-e", "-t", "main")
    finally:
        stage.close()
        plyfs.close()
        subprocess.run(["rm", "-rf", str(top)], check=False)
    return svg_of(screen.replace(str(workspace), "~/project"))


def _is_working(tui: Tui) -> bool:
    return "Working" in tui.screen()


def svg_of(screen: str) -> str:
    """A terminal's text, with escapes, as a picture."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    for line in screen.rstrip("\n").splitlines():
        console.print(Text.from_ansi(line), no_wrap=True, overflow="crop")
    return FONTS.sub("", console.export_svg(title="pi: /tree, with plyfs"))


def main() -> int:
    """Write the picture."""
    TARGET.write_text(shoot())
    print(f"{TARGET} is new", file=sys.stderr)  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
