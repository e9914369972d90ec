"""Values of AMQP of any type and depth."""

from __future__ import annotations

from hypothesis import strategies as st
from rmq_amqp import values

simple = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.floats(allow_nan=False),
    st.text(max_size=20),
    st.binary(max_size=300),
    st.uuids(),
    st.integers(0, 255).map(values.UByte),
    st.integers(-128, 127).map(values.Byte),
    st.integers(-(1 << 31), (1 << 31) - 1).map(values.Int),
    st.integers(0, (1 << 64) - 1).map(values.ULong),
    st.floats(width=32, allow_nan=False).map(values.Float),
)


anything = st.recursive(simple, lambda inner: st.lists(inner, max_size=5), max_leaves=20)
