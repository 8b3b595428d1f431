"""The JSON of the commands is the JSON of the library."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import quick_json

text = st.text(st.characters(exclude_categories=()))
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner) | st.dictionaries(text, inner),
    max_leaves=20,
)


@given(values)
def test_as_the_library_writes_and_reads(value: object) -> None:
    written = quick_json.dumps(value)
    assert written.isascii()
    assert "\n" not in written
    assert written == json.dumps(value)
    assert quick_json.loads(written) == json.loads(written)
    assert quick_json.loads(f"  {written} \n".encode()) == json.loads(written)


def test_a_name_that_is_not_text() -> None:
    assert quick_json.dumps("\udcff") == '"\\udcff"'
    assert quick_json.loads(b'"\\udcff"') == "\udcff"


@pytest.mark.parametrize(
    "data", [b"", b"{", b"{} {}", b"nope", b"NaN", b'{"a": Infinity}', b'"\x01"', b"\xff", b"[" * 100000]
)
def test_what_is_no_json(data: bytes) -> None:
    with pytest.raises(ValueError):
        quick_json.loads(data)


def test_nan_is_not_written() -> None:
    with pytest.raises(ValueError):
        quick_json.dumps({"a": float("nan")})
    with pytest.raises(TypeError):
        quick_json.dumps(object())


def test_without_the_c_module() -> None:
    code = (
        "import sys; sys.modules['_json'] = None\n"
        "from harness import quick_json\n"
        "assert quick_json.loads(quick_json.dumps({'a': ['\\udcff', 1.5]})) == {'a': ['\\udcff', 1.5]}\n"
        "try: quick_json.loads('NaN')\n"
        "except ValueError: print('refused')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "refused\n"
