"""The proof beside Java's signature: nothing of a request can be changed, and Java's signature covers it."""

from __future__ import annotations

import base64
import hashlib
import hmac
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq.protocol.auth.signature import (
    NONCE,
    PROOF,
    SIGNATURE,
    TIME,
    Credentials,
    Key,
    Prover,
    order_of,
    proof,
    signature,
)
from rmq.protocol.command import JSON, ROCKETMQ, Command
from rmq.protocol.frames import Decoder, encode

ACCOUNT = Credentials("someone", "a-secret-of-it", "token")
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
HEADERS = st.dictionaries(TEXTS.filter(lambda name: name not in (PROOF, SIGNATURE)), TEXTS, max_size=5)


def prover() -> Prover:
    return Prover(ACCOUNT, lambda: 1_700_000_000_000, b"\1" * 8)


def covered(ext: dict[str, str], code: int, flag: int, body: bytes) -> bytes:
    """The bytes that a proof covers, written a second time, field by field."""
    names = sorted(ext, key=lambda name: name.encode("utf-16-be"))
    listed = "".join(f"{len(name)}:{name}," for name in names)
    lengths = [len(listed), *(len(ext[name]) for name in names)]
    return (
        struct.pack(">13siiQ", b"rmq request 1", code, flag, len(body))
        + b"".join(struct.pack(">I", length) for length in lengths)
        + listed.encode()
        + "".join(ext[name] for name in names).encode()
        + body
    )


@given(HEADERS, st.integers(-(2**31), 2**31 - 1), st.booleans(), st.sampled_from([0, 5, 4096, 4097]))
def test_it_is_the_hmac_of_all_of_a_request(ext: dict[str, str], code: int, oneway: bool, size: int) -> None:
    command = Command.request(code, ext, b"x" * size, oneway=oneway)
    expected = hmac.digest(b"secret", covered(ext, code, 2 * oneway, command.body), hashlib.sha256)
    for header in (ext, dict(reversed(ext.items())), {**ext, PROOF: "a", SIGNATURE: "b"}):
        assert proof(order_of(header), header, command, Key("secret")) == base64.b64encode(expected).decode()


@given(HEADERS, HEADERS, st.binary(max_size=4), st.binary(max_size=4))
def test_two_requests_never_give_the_same_bytes(
    first: dict[str, str], second: dict[str, str], body: bytes, other: bytes
) -> None:
    same = covered(first, 1, 0, body) == covered(second, 1, 0, other)
    assert same == ((first, body) == (second, other))


@pytest.mark.parametrize("serialization", [JSON, ROCKETMQ])
@pytest.mark.parametrize("oneway", [False, True])
def test_it_outlives_the_wire(serialization: int, oneway: bool) -> None:
    plain = Command.request(310, {"b": "Täglich", "i": "a\1b\2"}, b"body", oneway=oneway)
    plain.serialization = serialization
    (command,) = Decoder().feed(encode(prover()(plain)))
    ext = command.ext
    assert ext[PROOF] == proof(order_of(ext), ext, command, Key(ACCOUNT.secret_key))
    assert ext["SecurityToken"] == "token"
    assert (ext["b"], ext["i"], command.body, command.opaque) == ("Täglich", "a\1b\2", b"body", plain.opaque)


def test_javas_signature_covers_it() -> None:
    """RocketMQ's servers know none of the fields, and join the values of all but the signature."""
    ext = prover()(Command.request(310, {"b": "T"}, b"body")).ext
    values = "".join(ext[name] for name in sorted(ext) if name != SIGNATURE)
    digest = hmac.digest(ACCOUNT.secret_key.encode(), values.encode() + b"body", "sha1")
    assert (
        ext[SIGNATURE] == base64.b64encode(digest).decode() == signature(ext, b"body", Key("a-secret-of-it"))
    )


def test_nonces_hold_mark_session_and_number() -> None:
    sign, other = prover(), Prover(ACCOUNT, lambda: 5)
    mark = Key(ACCOUNT.secret_key).mark
    nonces = [sign(Command.request(10)).ext[NONCE] for _ in range(3)]
    assert nonces == [f"{mark}AQEBAQEBAQE.{number}" for number in (1, 2, 3)]
    assert other(Command.request(10)).ext[TIME] == "5"
    assert other(Command.request(10)).ext[NONCE][:27] != nonces[0][:27]
    assert len({mark, Key("another").mark}) == 2


def test_headers_of_proved_sends_are_remembered_by_what_does_not_vary() -> None:
    """Otherwise each proved request with a binary header would be learned as a new one."""
    from rmq.protocol.header_binary import _TEMPLATES
    from tests.unit.broker.rig import send

    sign = Prover(ACCOUNT, iter(range(10, 10_000)).__next__)

    def known() -> int:
        return sum(map(len, _TEMPLATES[310].orders.values()))

    counts = []
    for number in range(5):
        plain = send(f"Proved{7}", b"x", properties=f"UNIQ_KEY\1{number}")
        plain.serialization = ROCKETMQ
        (command,) = Decoder().feed(encode(sign(plain)))
        assert command.header.topic == "Proved7"
        assert command.ext[PROOF]
        counts.append(known())
    assert len(set(counts)) == 1


def test_nothing_of_it_is_shown() -> None:
    command = prover()(Command.request(310, {"b": "T"}))
    assert command.ext[PROOF] not in repr(command)
    assert Key(ACCOUNT.secret_key).mark not in repr(command)
