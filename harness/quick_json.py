"""JSON for commands: the C scanner and encoder that lie below ``json``, without what it imports.

``json`` imports ``re``, and that ``enum`` and ``functools``: 8 ms, more than all else that ``plyfs status`` does. Where
Python has no such C module, or another one than we know, this is ``json`` itself. Text comes out as ASCII; a name that
is not UTF-8 is lone surrogates (``"\\udcff"``) on both sides.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class _Rules:
    """What ``json.JSONDecoder`` would tell its scanner."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int

    @staticmethod
    def parse_constant(name: str) -> float:
        """NaN and Infinity are no JSON."""
        raise ValueError(f"{name} is not JSON")


def _refuse(value: object) -> Any:
    raise TypeError(f"{type(value).__name__} is not JSON")


try:
    from _json import encode_basestring_ascii, make_encoder, make_scanner

    _scan = make_scanner(_Rules())  # type: ignore[arg-type]  # any object with these attributes will do
    _encode = make_encoder(None, _refuse, encode_basestring_ascii, None, ": ", ", ", False, False, False)
except (ImportError, TypeError):
    import json

    def loads(data: bytes | str) -> Any:
        """The value in ``data``. Raises ValueError."""
        return json.loads(data, parse_constant=_Rules.parse_constant)

    def dumps(value: Any) -> str:
        """``value`` as ASCII text on one line."""
        return json.dumps(value, allow_nan=False)

else:

    def loads(data: bytes | str) -> Any:
        """The value in ``data``. Raises ValueError."""
        text = (data if isinstance(data, str) else data.decode("utf-8")).strip(" \t\r\n")
        try:
            value, end = _scan(text, 0)
        except StopIteration as error:
            raise ValueError(f"not JSON at character {error.value}") from None
        except RecursionError:
            raise ValueError("nested too deep") from None
        if end != len(text):
            raise ValueError(f"something follows the JSON at character {end}")
        return value

    def dumps(value: Any) -> str:
        """``value`` as ASCII text on one line."""
        return "".join(_encode(value, 0))
