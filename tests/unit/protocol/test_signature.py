from __future__ import annotations

import base64
import json
import pathlib

from rmq.protocol.command import Command
from rmq.protocol.signature import Credentials, signed


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
