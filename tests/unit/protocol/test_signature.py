from __future__ import annotations

import base64
import hmac
import json
import pathlib

from hypothesis import given, strategies

from rmq.protocol.auth.signature import _ORDERS, _ORDERS_MAX, Credentials, Key, order_of, signature, signed
from rmq.protocol.command import Command

TEXTS = strategies.text(strategies.characters(exclude_categories=["Cs"]), max_size=8)


@given(strategies.dictionaries(TEXTS, TEXTS, max_size=5), strategies.binary(max_size=40), TEXTS)
def test_it_is_the_hmac_of_the_values_in_the_order_of_their_names(
    ext: dict[str, str], body: bytes, secret: str
) -> None:
    names = sorted(ext, key=lambda name: name.encode("utf-16-be"))
    expected = hmac.digest(secret.encode(), "".join(ext[name] for name in names).encode() + body, "sha1")
    for header in (ext, dict(reversed(ext.items())), {**ext, "Signature": "does not count"}):
        assert signature(header, body, Key(secret)) == base64.b64encode(expected).decode()


def test_names_that_are_made_up_do_not_pile_up() -> None:
    for number in range(3 * _ORDERS_MAX):
        signature({f"name{number}": "x"}, b"", Key("secret-of-it"))
    assert len(_ORDERS) <= _ORDERS_MAX


def test_nothing_is_kept_of_who_is_not_known_nor_of_long_names() -> None:
    """256 headers with 64 KiB of names each, which nobody had signed, were half a gigabyte."""
    before = dict(_ORDERS)
    for number in range(50):
        order_of({f"made up {number}": "x"}).content({f"made up {number}": "x"}, b"")
    signature({"long" * 300: "x"}, b"", Key("secret-of-it"))
    assert before == _ORDERS


def test_signatures_are_those_of_java(golden: pathlib.Path) -> None:
    vectors = json.loads((golden / "acl_signature.json").read_text())["vectors"]
    assert len(vectors) > 15
    for vector in vectors:
        account = Credentials(vector["accessKey"], vector["secretKey"], vector["securityToken"])
        body = base64.b64decode(vector["body_b64"] or "")
        given = vector.get("ext_fields_in") or {
            name: value
            for name, value in vector["ext_fields_out"].items()
            if name not in ("AccessKey", "SecurityToken", "Signature")
        }
        command = Command.request(310, given, body)
        got = signed(command, account)
        assert got.ext == vector["ext_fields_out"]
        assert (got.opaque, got.body) == (command.opaque, body)


def test_secrets_are_not_shown() -> None:
    assert "hidden" not in repr(Credentials("name", "hidden", "hidden"))
