"""Which paths git ignores: the files of patterns above a path, in git's order of precedence.

Owns ``RuleFile`` (the lines of one file) and ``Rules`` (all that decide in one directory): the last pattern that
matches in the nearest file decides; nothing below an ignored directory is ever asked for. Does not own the syntax of a
line (``patterns``), nor where the files are (``repository``).

Concurrency: values.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from vfs.scan.patterns import Pattern, parse

MAX_BYTES = 100 << 20
"""git ignores a longer file of patterns."""


class _Compiled(NamedTuple):
    matches: re.Pattern[bytes]
    pattern: Pattern


class RuleFile:
    """The patterns of one file that stands in ``base`` (b"" or a path ending in a slash, from the repository's top)."""

    __slots__ = ("_compiled", "_names", "_paths", "base", "text")

    def __init__(self, base: bytes, text: bytes, ignore_case: bool = False) -> None:
        self.base = base
        self.text = text
        flags = re.DOTALL | (re.IGNORECASE if ignore_case else 0)
        lines = text.removeprefix(b"\xef\xbb\xbf").split(b"\n")
        found = [pattern for pattern in (parse(line.removesuffix(b"\r")) for line in lines) if pattern is not None]
        self._compiled = [_Compiled(re.compile(one.regex, flags), one) for one in reversed(found)]
        # Most names match no pattern: one expression for all of them says so at once.
        self._names = _any([one.regex for one in found if one.basename], flags)
        self._paths = _any([one.regex for one in found if not one.basename], flags)

    def verdict(self, path: bytes, name: bytes, directory: bool) -> bool | None:
        """True for ignored, False for not, None if this file does not decide. ``path`` is from the repository's top."""
        inner = path[len(self.base) :]
        by_name = self._names is not None and self._names.fullmatch(name) is not None
        by_path = self._paths is not None and self._paths.fullmatch(inner) is not None
        if not by_name and not by_path:
            return None
        for matches, pattern in self._compiled:
            if (directory or not pattern.directory) and matches.fullmatch(name if pattern.basename else inner):
                return not pattern.negated
        return None


def _any(expressions: list[bytes], flags: int) -> re.Pattern[bytes] | None:
    return re.compile(b"|".join(b"(?:%s)" % one for one in expressions), flags) if expressions else None


class Rules:
    """The files that decide in one directory of a repository, the nearest first."""

    __slots__ = ("_files", "ignore_case")

    def __init__(self, files: tuple[RuleFile, ...], ignore_case: bool = False) -> None:
        self._files = files
        self.ignore_case = ignore_case

    def below(self, base: bytes, text: bytes | None) -> Rules:
        """The rules of a directory with a ``.gitignore`` of that text, None for none."""
        if not text:
            return self
        return Rules((RuleFile(base, text, self.ignore_case), *self._files), self.ignore_case)

    def ignores(self, path: bytes, name: bytes, directory: bool) -> bool:
        """True if git ignores ``name``, which is ``path`` from the repository's top."""
        for file in self._files:
            verdict = file.verdict(path, name, directory)
            if verdict is not None:
                return verdict
        return False


NONE = Rules(())
"""Nothing is ignored."""
