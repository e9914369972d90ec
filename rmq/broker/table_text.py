"""The text of a table file in slices: a body that is empty but for its version, and rows put into it."""

from __future__ import annotations

from collections.abc import Mapping
from json.encoder import encode_basestring
from typing import Final

from rmq.broker.slices import Slices
from rmq.protocol.fields import Body

SLICE_ROWS: Final = 50


def encode(empty: Body, name: str, rows: Mapping[str, Body]) -> Slices[bytes]:
    """`empty` as text, with `rows` in its map `name`; no row changes meanwhile, rows may come and go."""
    head, tail = empty.to_json().split(f'"{name}":{{}}'.encode())
    pieces = [head, f'"{name}":{{'.encode()]
    for count, (key, row) in enumerate(list(rows.items())):
        pieces += (b"," if count else b"", encode_basestring(key).encode("utf-8", "replace"), b":")
        pieces.append(row.to_json())
        if count % SLICE_ROWS == SLICE_ROWS - 1:
            yield
    return b"".join((*pieces, b"}", tail))
