"""What people are told: every text in the code has a translation, the right one, and with the same places."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import language
from harness.language import Catalogue, catalogue_path, parts_of, read_catalogue
from tests.served import Plyfs

ROOT = Path(__file__).resolve().parent.parent.parent
LANGUAGES = [name for name in language.LANGUAGES if name != "en"]

LOGGED = frozenset({"debug", "info", "warning", "error", "exception"})
EXPLAINING = frozenset({"vfs/channels/negotiation.py"})
"""But for what it raises, its texts say why a flag of the kernel's is wanted, to who reads the code."""
NO_MESSAGE = {
    "new file": "a line of a patch",
    "deleted file": "a line of a patch",
    "old mode": "a line of a patch",
    "diff ": "a line of a patch",
    "index ": "a line of a patch",
    "rename ": "a line of a patch",
    "ermission denied": "looked for in what fusermount3 says",
    "Operation not permitted": "looked for in what fusermount3 says",
    "too many FUSE filesystems": "looked for in what fusermount3 says",
    "for Windows alone": "why a module cannot be imported",
    "kill {}": "to be typed",
    "taskkill /F /PID {}": "to be typed",
    "plyfs {}": "a name",
    "plyfs {}\n": "the version",
    "Oh My Pi": "a name",
    "-- COMMAND": "the name of an argument",
    "{} TiB": "a size",
    "{}  {}, {} ms": "an id, a count and a time",
    " {} | {} {}": "a row of a table",
    " {} | binary ({})": "a row of a table",
    " - at `$": "in what msgspec says",
    "msgid ''": "a line of a catalogue",
    "-h, --help": "two options",
    "plyfs: {}: {}": "a name and what the system says",
    "{} and {}": "two names",
    "%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s": "the form of a log",
    "a move is made or refused": "a broken invariant",
    "appending to a file that was closed": "a broken invariant",
    "with the tree held still nothing changes": "a broken invariant",
    "not a POSIX ACL of version 2": "turned into an errno",
    "the source is shorter than it was": "turned into an errno",
    "{} is not JSON": "turned into an error that has a text of its own",
    "not JSON at character {}": "turned into an error that has a text of its own",
    "something follows the JSON at character {}": "turned into an error that has a text of its own",
    "nested too deep": "turned into an error that has a text of its own",
}
"""Texts that nobody is told, and why; places are ``{}``."""
DYNAMIC = (
    *(f"{{}} {word}{plural}" for word in ("path", "file", "folder", "object", "checkpoint") for plural in ("", "s")),
    *(f"{{}} {word}{plural}" for word in ("workspace", "day", "hour", "minute") for plural in ("", "s")),
    *("invalid enum value {}", "expected {}, got {}", "expected {} >= {}", "expected {} <= {}"),
    *("{}: {}", "{}; {}", "{} is damaged: {}"),
)
"""Keys that are put together in the code, or that another library says; and what joins texts."""


def erased(key: str) -> str:
    """A key with its places unnamed; places side by side are one."""
    made = "{}".join(text for text, _ in parts_of(key))
    return re.sub(r"(\{\})+", "{}", made)


def is_words(text: str) -> bool:
    """True for what could be a message: words with a space between, beside the places."""
    return " " in text.strip() and re.search(r"[A-Za-z]{2}", text.replace("{}", "")) is not None


class Texts(ast.NodeVisitor):
    """The texts in a module but those in documentation, logs, assertions and annotations."""

    def __init__(self) -> None:
        self.found: list[tuple[int, str]] = []
        self.constants: set[str] = set()

    def visit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):
            self.generic_visit(node)

    def visit_Assert(self, node: ast.Assert) -> None:
        pass

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None and ast.unparse(node.annotation) != "TypeAlias":
            self.visit(node.value)

    def visit_arg(self, node: ast.arg) -> None:
        pass

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func
        if isinstance(name, ast.Attribute) and name.attr in LOGGED and ast.unparse(name.value) in ("log", "logging"):
            return
        if ast.unparse(name) in ("cast", "re.compile", "re.search", "re.fullmatch", "logging.Formatter"):
            return
        self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        self.visit(node.value)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        text = ""
        for part in node.values:
            if isinstance(part, ast.Constant):
                text += str(part.value).replace("{", "{{").replace("}", "}}")
            else:
                text += "{}"
                self.visit(part)
        self.found.append((node.lineno, re.sub(r"(\{\})+", "{}", text)))

    def visit_FormattedValue(self, node: ast.FormattedValue) -> None:
        self.visit(node.value)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str):
            self.constants.add(node.value)
            self.found.append((node.lineno, node.value))


def texts() -> Iterator[tuple[str, int, str]]:
    for path in sorted(path for top in ("harness", "vfs", "store") for path in (ROOT / top).rglob("*.py")):
        name = str(path.relative_to(ROOT))
        visitor = Texts()
        module = ast.parse(path.read_text())
        for node in (one for one in ast.walk(module) if isinstance(one, ast.Raise)) if name in EXPLAINING else [module]:
            visitor.visit(node)
        for line, text in visitor.found:
            yield name, line, text


@pytest.fixture(scope="module")
def code() -> list[tuple[str, int, str]]:
    return list(texts())


@pytest.fixture(params=LANGUAGES)
def translations(request: pytest.FixtureRequest) -> dict[str, str]:
    return read_catalogue(Path(catalogue_path(request.param)).read_text())


def test_every_text_has_a_translation(code: list[tuple[str, int, str]], translations: dict[str, str]) -> None:
    known = {erased(key) for key in translations}
    missing = [
        f"{name}:{line}: {text!r}"
        for name, line, text in code
        if is_words(text)
        and text not in NO_MESSAGE
        and text not in known
        # Part of a text, to be put behind another.
        and not ((text[0] in " ,;" and "{}" + text in known) or (text[-1] == " " and text + "{}" in known))
    ]
    assert not missing, "add these to harness/words/*.po, or to NO_MESSAGE if nobody is told them:\n" + "\n".join(
        missing
    )


def test_every_translation_is_of_a_text(code: list[tuple[str, int, str]], translations: dict[str, str]) -> None:
    said = {form for _, _, text in code for form in (text, "{}" + text, text + "{}")} | set(DYNAMIC)
    system = set(translations) & SYSTEM
    stale = [key for key in translations if erased(key) not in said and key not in system]
    assert not stale


SYSTEM = {
    *("No such file or directory", "Permission denied", "Operation not permitted", "No space left on device"),
    *("Read-only file system", "File exists", "Not a directory", "Is a directory", "Input/output error"),
    *("Device or resource busy", "File name too long", "Too many open files", "Operation not supported"),
    *("Disk quota exceeded", "Transport endpoint is not connected"),
}
"""What strerror(3) says; no locale of ours changes that."""


def test_the_exceptions_are_still_in_the_code(code: list[tuple[str, int, str]]) -> None:
    said = {text for _, _, text in code}
    assert [text for text in NO_MESSAGE if text not in said] == []


def test_a_translation_has_the_places_of_its_key(translations: dict[str, str]) -> None:
    for key, translation in translations.items():
        places = [sorted({name for _, name in parts_of(text) if name is not None}) for text in (key, translation)]
        assert places[0] == places[1], key
        assert len(places[0]) == sum(name is not None for _, name in parts_of(key)), f"a place twice in {key!r}"
        assert translation.strip(), key
        for word in key.split("`")[1::2]:
            assert f"`{word}`" in translation, f"{key!r}: {word} is to be typed, so it stays as it is"


def test_each_text_finds_its_own_translation(translations: dict[str, str]) -> None:
    """What is told is the translation of the form that the text has, not of another that it has as well."""
    catalogue = Catalogue(translations)
    for key, translation in translations.items():
        names = [name for _, name in parts_of(key) if name is not None]
        values = {name: f"V{place}" for place, name in enumerate(names)}
        assert catalogue.told(filled(key, values)) == filled(translation, values)


def filled(text: str, values: dict[str, str]) -> str:
    return "".join(part + values.get(name or "", "") for part, name in parts_of(text))


def test_words_in_words() -> None:
    catalogue = Catalogue(
        {
            "{path} cannot be read: {error}": "无法读取 {path}：{error}",
            "is missing": "缺失",
            "{path}: {error}": "{path}：{error}",
            "a brace {{ in {name}": "{name} 中有 {{",
        }
    )
    assert catalogue.told("/a cannot be read: is missing") == "无法读取 /a：缺失"
    assert catalogue.told("/a: is missing") == "/a：缺失"
    # A path is never taken for words.
    assert catalogue.told("is missing cannot be read: no") == "无法读取 is missing：no"
    assert catalogue.told("a brace { in x") == "x 中有 {"
    assert catalogue.told("something else") == "something else"


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({}, "en"),
        ({"LANG": "zh_CN.UTF-8"}, "zh-CN"),
        ({"LANG": "zh_CN.UTF-8", "LC_MESSAGES": "de_DE.UTF-8"}, "en"),
        ({"LANG": "en_US.UTF-8", "LC_ALL": "zh_CN"}, "zh-CN"),
        ({"LANG": "C.UTF-8", "LC_MESSAGES": "zh_SG.UTF-8"}, "zh-CN"),
        ({"LANG": "zh_TW.UTF-8"}, "en"),
        ({"LANG": "zh"}, "zh-CN"),
        ({"LANG": "zh-Hans"}, "zh-CN"),
        ({"LC_ALL": "", "LANG": "zh_CN@x"}, "zh-CN"),
    ],
)
def test_the_language_of_a_locale(environment: dict[str, str], wanted: str) -> None:
    assert language.of_locale(environment) == wanted


def test_columns() -> None:
    assert language.padded("abc", 6) == "   abc"
    assert language.padded("刚刚", 6) == "  刚刚"


CHINESE = {"LC_ALL": "zh_CN.UTF-8", "PYTHONUTF8": "1"}


def test_commands_speak_the_language_of_the_locale(plyfs: Plyfs, tmp_path: Path) -> None:
    plyfs.environment |= CHINESE
    assert "回到上一个状态" in plyfs.run("--help").stdout
    assert "步数" in plyfs.run("undo", "--help").stdout
    failed = plyfs.run("status", "-C", str(tmp_path), check=False)
    assert failed.stderr == (
        f"plyfs：{tmp_path} 不在已挂载的工作区中\n提示：`plyfs mount DIRECTORY` 可管理一个目录；在别处用 -C 指定\n"
    )
    # What programs read is the same for everybody.
    told = json.loads(plyfs.run("status", "-C", str(tmp_path), "--json", check=False).stdout)
    assert told["error"]["message"] == f"{tmp_path} is not in a workspace that is mounted"
    # But for those that tell a person of it.
    plyfs.environment |= {"PLYFS_ERROR_LANGUAGE": "zh-CN"}
    told = json.loads(plyfs.run("status", "-C", str(tmp_path), "--json", check=False).stdout)
    assert told["error"]["message"] == f"{tmp_path} 不在已挂载的工作区中"
    assert told["error"]["code"] == "not_a_workspace"


def test_the_configuration_comes_before_the_locale(plyfs: Plyfs, tmp_path: Path) -> None:
    config = Path(plyfs.environment["XDG_CONFIG_HOME"]) / "plyfs" / "config.toml"
    config.parent.mkdir(parents=True)
    config.write_text('[messages]\nlanguage = "zh-CN"\n')
    assert "提示：" in plyfs.run("status", "-C", str(tmp_path), check=False).stderr
    plyfs.environment |= CHINESE
    config.write_text('[messages]\nlanguage = "en"\n')
    assert "hint: " in plyfs.run("status", "-C", str(tmp_path), check=False).stderr
    config.write_text('[messages]\nlanguage = "fr"\n')
    refused = plyfs.run("config", check=False)
    assert refused.returncode == 2
    assert f"{config}:2：messages.language：不允许的值 'fr'" in refused.stderr


@pytest.mark.parametrize("locale", ["C.UTF-8", "zh_CN.UTF-8"])
def test_help_loads_nothing_that_takes_long(plyfs: Plyfs, locale: str) -> None:
    """`plyfs --help` may take 2.5 times as long as Python alone; these would take more."""
    code = (
        "import sys; before = set(sys.modules); from harness.cli import main; main(['--help']);"
        "print(*sorted(set(sys.modules) - before))"
    )
    environment = {**plyfs.environment, "LC_ALL": locale, "PYTHONPATH": str(ROOT), "PYTHONUTF8": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    loaded = set(done.stdout.splitlines()[-1].split())
    assert "harness.language" in loaded
    assert loaded.isdisjoint({"re", "json", "gettext", "locale", "argparse", "tomllib", "msgspec", "platformdirs"})
