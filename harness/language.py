"""The language that people are told things in, and the translation of what they are told.

Owns the choice (settings, else locale) and the catalogues, ``words/LANGUAGE.po``. English is what the code says and
the key of each translation; a key with places (``{path} is not a directory``) is for all texts that an f-string of this
form makes. So the layers below know of no language, and what crosses the socket, what is logged and what ``--json``
prints stays the same for everybody: only what reaches a person goes through ``told`` (docs/adr/0011). A text without a
translation stays as it is. Knows only the standard library; in English nothing is loaded.

Concurrency: a catalogue never changes; two threads that load one at the same time load it twice.
"""

from __future__ import annotations

import os

from harness.places import config_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

LANGUAGES = ("en", "zh-CN")

NESTED = frozenset({"detail", "error", "hint", "note", "reason", "what", "who", "why"})
"""The names of places that hold words, to be translated too. Any other holds a path, a name or a number."""

CONFIG_MAX = 1 << 20


class Template:
    """A key with places, and its translation."""

    __slots__ = ("_names", "_parts", "_translation", "rank")

    def __init__(self, key: str, translation: str) -> None:
        self._parts: list[str] = []
        self._names: list[str] = []
        for text, name in parts_of(key):
            self._parts.append(text)
            if name is not None:
                self._names.append(name)
        self._translation = translation
        self.rank = (len(self._parts[0]), sum(len(part) for part in self._parts))
        """How sure it is that a text which matches is meant: how much it says in front, and in all."""

    def match(self, text: str) -> dict[str, str] | None:
        """What stands in the places if ``text`` is of this form: each as short as can be."""
        first, *middle, last = self._parts
        end = len(text) - len(last)
        place = len(first)
        if place > end or not text.startswith(first) or not text.endswith(last):
            return None
        values = []
        for part in middle:
            found = text.find(part, place, end)
            if found < 0:
                return None
            values.append(text[place:found])
            place = found + len(part)
        values.append(text[place:end])
        return dict(zip(self._names, values, strict=True))

    def filled(self, values: Mapping[str, str]) -> str:
        """The translation with ``values`` in its places."""
        return "".join(text if name is None else text + values[name] for text, name in parts_of(self._translation))


class Catalogue:
    """All translations into one language."""

    def __init__(self, translations: Mapping[str, str]) -> None:
        self._texts: dict[str, str] = {}
        self._templates: list[Template] = []
        for key, translation in translations.items():
            if "{" in key:
                self._templates.append(Template(key, translation))
            else:
                self._texts[key] = translation
        self._templates.sort(key=lambda template: template.rank, reverse=True)

    def told(self, text: str) -> str:
        """``text`` in this language, as far as it is known."""
        known = self._texts.get(text)
        if known is not None:
            return known
        for template in self._templates:
            values = template.match(text)
            if values is not None:
                return template.filled(
                    {name: self.told(value) if name in NESTED else value for name, value in values.items()}
                )
        return text


def parts_of(key: str) -> Iterator[tuple[str, str | None]]:
    """Each text in ``key`` and the name of the place behind it; the last has none. ``{{`` is a brace."""
    text = ""
    while True:
        head, brace, key = key.partition("{")
        text += head.replace("}}", "}")
        if not brace:
            yield text, None
            return
        if key.startswith("{"):
            text, key = text + "{", key[1:]
            continue
        name, _, key = key.partition("}")
        yield text, name
        text = ""


def read_catalogue(text: str) -> dict[str, str]:
    """The translations in a ``.po`` file, as far as ours use the format: msgid, msgstr, continued lines, comments."""
    found: dict[str, str] = {}
    key = value = ""
    at = ""
    for line in (*text.splitlines(), "msgid ''"):
        word, _, rest = line.partition(" ")
        if word == "msgid":
            if key and value:
                found[key] = value
            key, value, at = _quoted(rest), "", "key"
        elif word == "msgstr":
            value, at = _quoted(rest), "value"
        elif line.startswith('"') and at == "key":
            key += _quoted(line)
        elif line.startswith('"') and at == "value":
            value += _quoted(line)
    return found


def _quoted(text: str) -> str:
    body = text.strip()[1:-1]
    if "\\" not in body:
        return body
    marks = {"n": "\n", "t": "\t"}
    out = ""
    waiting = iter(body)
    for character in waiting:
        escaped = next(waiting, "") if character == "\\" else None
        out += character if escaped is None else marks.get(escaped, escaped)
    return out


def catalogue_path(language: str) -> str:
    """Where the translations into ``language`` stand."""
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), "words", f"{language}.po")


def load(language: str) -> Catalogue | None:
    """The catalogue for ``language``; None for English, and if it cannot be read."""
    if language == "en" or language not in LANGUAGES:
        return None
    try:
        with open(catalogue_path(language), encoding="utf-8") as file:
            return Catalogue(read_catalogue(file.read()))
    except OSError:
        return None


def of_locale(environment: Mapping[str, str] = os.environ) -> str:
    """The language of the locale: of ``LC_ALL``, else ``LC_MESSAGES``, else ``LANG``."""
    name = environment.get("LC_ALL") or environment.get("LC_MESSAGES") or environment.get("LANG") or ""
    name = name.partition(".")[0].partition("@")[0].replace("-", "_").lower()
    return "zh-CN" if name in ("zh", "zh_cn", "zh_sg") or name.startswith("zh_hans") else "en"


def chosen() -> str:
    """The language for this user: as ``[messages] language`` says, else as the locale does."""
    return _configured() or of_locale()


def _configured() -> str | None:
    try:
        with open(config_path(), "rb") as file:
            data = file.read(CONFIG_MAX)
    except OSError:
        return None
    if b"messages" not in data:
        return None  # most files; reading TOML costs more than many a command
    from harness.config import load as load_config
    from harness.failure import PlyfsError

    try:
        language = load_config("").messages.language
    except PlyfsError:
        return None  # whoever needs the settings tells what is wrong with them
    return None if language == "auto" else language


_catalogue: Catalogue | None = None
_is_chosen = False


def told(text: str) -> str:
    """``text`` as this person reads it."""
    global _catalogue, _is_chosen
    if not _is_chosen:
        _catalogue, _is_chosen = load(chosen()), True
    return text if _catalogue is None else _catalogue.told(text)


def forget() -> None:
    """Choose anew, for tests."""
    global _is_chosen
    _is_chosen = False


def padded(text: str, width: int) -> str:
    """``text`` at the right end of ``width`` columns. East Asian characters take two."""
    wide = 0 if text.isascii() else sum(character >= "\u1100" for character in text)
    return text.rjust(width - wide)
