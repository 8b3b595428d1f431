"""What the extension says: the same in each language, with the same values in it."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from tests.agents import toolchain

pytestmark = [pytest.mark.agents, pytest.mark.timeout(60)]

SCRIPT = """
import { en } from "SRC/words/en.ts";
import { zhCN } from "SRC/words/zh_cn.ts";
const said = (value) => {
  if (typeof value === "function") {
    return [7, 8].map((first) => String(value(...[first, 901, 902, 903].slice(0, value.length))));
  }
  return typeof value === "object" ? each(value, said) : value;
};
const each = (value, what) => Object.fromEntries(Object.entries(value).map(([key, one]) => [key, what(one)]));
const places = (value) =>
  typeof value === "function" ? value.length : typeof value === "object" ? each(value, places) : 0;
console.log(JSON.stringify({ en: said(en), zh: said(zhCN), enPlaces: places(en), zhPlaces: places(zhCN) }));
"""


@pytest.fixture(scope="module")
def words(agents: None) -> Any:
    script = SCRIPT.replace("SRC", str(toolchain.EXTENSION / "src"))
    done = subprocess.run(
        [str(toolchain.NODE), "--input-type=module", "-e", script],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    return json.loads(done.stdout)


def flat(value: Any, name: str = "") -> dict[str, Any]:
    if not isinstance(value, dict):
        return {name: value}
    return {key: one for part, inner in value.items() for key, one in flat(inner, f"{name}.{part}").items()}


def test_each_language_says_the_same_with_the_same_values(words: Any) -> None:
    en, zh = flat(words["en"]), flat(words["zh"])
    assert list(en) == list(zh)
    assert words["enPlaces"] == words["zhPlaces"]
    for key, text in zh.items():
        assert text and text != ""
        english, chinese = (" ".join(one) if isinstance(one, list) else one for one in (en[key], text))
        for value in ("7", "8", "901", "902"):
            assert (value in english) == (value in chinese), key
        if key not in (".badgeChanges",):
            assert any(letter > "\u4e00" for letter in chinese), f"{key} is not Chinese: {chinese}"


def test_nothing_is_said_by_nobody(words: Any) -> None:
    source = "".join(
        path.read_text() for path in (toolchain.EXTENSION / "src").rglob("*.ts") if path.parent.name != "words"
    )
    for key in words["en"]:
        assert f"words.{key}" in source or f"Words.{key}" in source, key
    for key in words["en"]["failures"]:
        assert f'Failure.own("{key}"' in source, key
