"""Options of a command line: declared, parsed, explained.

Owns a small part of what ``argparse`` does, which with all that it imports costs more time than most commands take:
long and short options with and without value, arguments, groups of options of which one may be given. Knows nothing of
the commands. Every complaint is a PlyfsError with the code ``usage``.
"""

from __future__ import annotations

from harness.failure import PlyfsError
from harness.language import told

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NAME_COLUMNS = 26


class Options:
    """The values, by name, as attributes."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.__dict__.update(values)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


class Option:
    """One option. ``value`` is what a flag sets; None if the option takes a value."""

    __slots__ = ("choices", "help", "metavar", "name", "number", "value", "words")

    def __init__(
        self,
        name: str,
        words: tuple[str, ...],
        help: str,
        value: object = None,
        metavar: str = "",
        choices: tuple[str, ...] = (),
        number: bool = False,
    ) -> None:
        self.name = name
        self.words = words
        self.help = help
        self.value = value
        self.metavar = metavar
        self.choices = choices
        self.number = number

    def spelled(self) -> str:
        """How it is written in the help."""
        value = "{" + ",".join(self.choices) + "}" if self.choices else self.metavar
        return ", ".join(self.words) + (f" {value}" if value else "")


class Argument:
    """One argument, or (``many``) all that are left."""

    __slots__ = ("help", "many", "metavar", "name", "number", "optional")

    def __init__(self, name: str, metavar: str, help: str, optional: bool, many: bool, number: bool) -> None:
        self.name = name
        self.metavar = metavar
        self.help = help
        self.optional = optional
        self.many = many
        self.number = number


class Syntax:
    """What one command understands."""

    def __init__(self, command: str, what: str, after: str = "") -> None:
        self.command = command
        self._what = what
        self._after = after
        self._options: list[Option] = []
        self._arguments: list[Argument] = []
        self._defaults: dict[str, Any] = {}
        self._exclusive: list[frozenset[str]] = []

    def flag(self, *words: str, help: str, name: str = "", value: object = True, default: object = False) -> None:
        """An option without value: sets ``name`` (default: its long word) to ``value``."""
        option = Option(name or _name(words), words, help, value)
        self._options.append(option)
        self._defaults.setdefault(option.name, default)

    def option(
        self,
        *words: str,
        help: str,
        name: str = "",
        metavar: str = "",
        choices: tuple[str, ...] = (),
        number: bool = False,
    ) -> None:
        """An option with a value; None if it is not given."""
        option = Option(
            name or _name(words),
            words,
            help,
            None,
            metavar or ("" if choices else _name(words).upper()),
            choices,
            number,
        )
        self._options.append(option)
        self._defaults.setdefault(option.name, None)

    def argument(
        self, name: str, metavar: str, help: str = "", optional: bool = False, many: bool = False, number: bool = False
    ) -> None:
        """The next argument. ``many`` takes all that are left, as a list."""
        self._arguments.append(Argument(name, metavar, help, optional or many, many, number))
        self._defaults[name] = [] if many else None

    def exclusive(self, *words: str) -> None:
        """Of these options at most one may be given."""
        self._exclusive.append(frozenset(words))

    def parse(self, words: list[str]) -> Options:
        """The values in ``words``. Raises PlyfsError."""
        values = {name: list(value) if isinstance(value, list) else value for name, value in self._defaults.items()}
        free: list[str] = []
        given: list[str] = []
        waiting = list(reversed(words))
        while waiting:
            word = waiting.pop()
            if word == "--":
                free.extend(reversed(waiting))
                break
            if word == "-" or not word.startswith("-"):
                free.append(word)
                continue
            option, attached = self._find(word)
            given.append(option.words[-1])
            if option.value is not None:
                if attached is not None:
                    raise self._complaint(f"{option.words[-1]} takes no value")
                values[option.name] = option.value
                continue
            if attached is None:
                if not waiting:
                    raise self._complaint(f"{option.words[-1]} needs a value")
                attached = waiting.pop()
            if option.choices and attached not in option.choices:
                raise self._complaint(f"{option.words[-1]} is one of {', '.join(option.choices)}, not {attached!r}")
            values[option.name] = self._number(option.words[-1], attached) if option.number else attached
        for group in self._exclusive:
            both = [word for word in dict.fromkeys(given) if word in group]
            if len(both) > 1:
                raise self._complaint(f"{both[0]} and {both[1]} exclude each other")
        self._fill(values, free)
        return Options(values)

    def _find(self, word: str) -> tuple[Option, str | None]:
        """The option that ``word`` is, and the value that is written in the same word."""
        head, equals, tail = word.partition("=")
        for option in self._options:
            if word in option.words:
                return option, None
            if equals and head.startswith("--") and head in option.words:
                return option, tail
        if not word.startswith("--"):
            for option in self._options:
                if word[:2] in option.words and option.value is None:
                    return option, word[2:]
        raise self._complaint(f"there is no option {word}")

    def _fill(self, values: dict[str, Any], free: list[str]) -> None:
        for argument in self._arguments:
            if argument.many:
                values[argument.name] = free
                return
            if free:
                word = free.pop(0)
                values[argument.name] = self._number(argument.metavar, word) if argument.number else word
            elif not argument.optional:
                raise self._complaint(f"{argument.metavar} is missing")
        if free:
            raise self._complaint(f"too many arguments: {free[0]!r}")

    def _number(self, what: str, word: str) -> int:
        if not (word.isascii() and word.isdigit()):
            raise self._complaint(f"{what} must be a number, not {word!r}")
        return int(word)

    def _complaint(self, message: str) -> PlyfsError:
        return PlyfsError("usage", f"{self.command}: {message}", f"`{self.command} --help` explains it")

    def text(self) -> str:
        """The help."""
        usage = [told(f"usage: {self.command} [options]")]
        rows = []
        for argument in self._arguments:
            word = argument.metavar + ("..." if argument.many else "")
            usage.append(f"[{word}]" if argument.optional else word)
            if argument.help:
                rows.append(_row(argument.metavar, argument.help))
        rows.extend(_row(option.spelled(), option.help) for option in self._options)
        rows.append(_row("-h, --help", "show this"))
        return f"{' '.join(usage)}\n\n{told(self._what)}\n\n{''.join(rows)}\n{told(self._after)}\n"


def _name(words: tuple[str, ...]) -> str:
    return words[-1].lstrip("-").replace("-", "_")


def _row(left: str, right: str) -> str:
    right = told(right)
    if len(left) > NAME_COLUMNS - 2:
        return f"  {left}\n  {'':<{NAME_COLUMNS}}{right}\n"
    return f"  {left:<{NAME_COLUMNS}}{right}\n"
