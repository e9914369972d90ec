"""Access control: what a mutation run showed that no test had held."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest
from rmq_acl import files, plainfile
from rmq_acl.plainfile import name_and_permission

import rmq.files
from rmq.message import TRACE_TOPIC
from rmq.protocol.auth.signature import SIGNATURE, Credentials, key_of, order_of, signature_of, with_account
from rmq.protocol.bodies import CheckClientRequestBody, SubscriptionData
from rmq.protocol.codes import RequestCode, ResponseCode
from rmq.protocol.command import JSON, ROCKETMQ, Command
from rmq.protocol.frames import encode
from tests.unit.broker.rig import Wire, send
from tests.unit.plugins.guarded import OTHER, OWNER, TEXT, Guarded


def test_a_changed_file_is_on_the_medium_before_it_takes_the_place_of_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    sync, replace, sync_folder = os.fsync, os.replace, rmq.files.sync_folder
    monkeypatch.setattr(os, "fsync", lambda number: (done.append("sync"), sync(number))[1])
    monkeypatch.setattr(os, "replace", lambda old, new: (done.append("replace"), replace(old, new))[1])
    monkeypatch.setattr(rmq.files, "sync_folder", lambda path: (done.append("folder"), sync_folder(path))[1])
    path = tmp_path / "plain_acl.yml"
    path.write_text("old")
    files._replace(str(path), b"new")
    assert path.read_bytes() == b"new"
    assert [*dict.fromkeys(done)] == ["sync", "replace", "folder"]


def test_the_check_of_a_subscription_needs_the_topic_too(tmp_path: Path) -> None:
    guarded = Guarded(tmp_path)

    def checked(topic: str) -> int:
        data = SubscriptionData(topic=topic, sub_string="*")
        body = CheckClientRequestBody("id", "others", data)
        request = Command.request(RequestCode.CHECK_CLIENT_CONFIG, body=body.to_json())
        return guarded.ask(request, OTHER).code

    assert checked("Orders") == 16  # the group is theirs, the topic is not
    body = CheckClientRequestBody("id", "g", SubscriptionData(topic="Orders", sub_string="*"))
    assert guarded.ask(Command.request(RequestCode.CHECK_CLIENT_CONFIG, body=body.to_json()), OWNER).code == 0


def test_a_file_that_others_may_read_is_told_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    guarded = Guarded(tmp_path)
    assert "can read the secrets" not in caplog.text
    os.chmod(guarded.file, 0o644)
    for text in ("# one\n", "# two\n"):
        guarded.write(guarded.file.read_text() + text)
        guarded.plugin.files.load()
    assert caplog.text.count("can read the secrets") == 1


def test_what_is_not_known_is_named_with_its_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        plainfile.read("acl.yml", b"accounts: []\nodd: 1\n")
    assert "acl.yml:2: odd" in caplog.text


@pytest.mark.parametrize("text", ["", "Orders", "=PUB", "Orders=", "=", " = PUB"])
def test_half_a_permission_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="name=permission"):
        name_and_permission(text)


def test_an_account_that_may_do_nothing_cannot_fill_the_topic_of_traces(tmp_path: Path) -> None:
    row = "  - {accessKey: nobody1, secretKey: nobodys-secret}\n"
    text = TEXT.replace("dataVersion:", f"{row}dataVersion:")
    guarded = Guarded(tmp_path, text, trace_topic_enable=True)
    nobody = Credentials("nobody1", "nobodys-secret")
    trace = send(TRACE_TOPIC, bytes(10_000))
    codes = [guarded.ask(trace, nobody).code for _ in range(200)]
    assert codes[0] == 0
    assert 95 <= codes.count(0) <= 110  # 60 s of 16 KiB
    assert codes[-1] == ResponseCode.NO_PERMISSION
    assert {guarded.ask(trace, OTHER).code for _ in range(200)} == {0}


@pytest.mark.parametrize("form", [JSON, ROCKETMQ])
def test_texts_that_are_no_utf8_are_signed_by_their_bytes(tmp_path: Path, form: int) -> None:
    """A C++ client in China sends its keys in GBK, and signs the bytes that it sends."""
    guarded, place, keys, other = Guarded(tmp_path), b"@@@@", "订单".encode("gbk"), "账单".encode("gbk")
    plain = send(properties=f"KEYS\x01{place.decode()}\x02WAIT\x01true")
    ext = with_account(plain.ext, OWNER)
    content = order_of(ext).content(ext, plain.body).replace(place, keys)
    ext[SIGNATURE] = signature_of(content, key_of(OWNER.secret_key))
    request = plain.with_ext(ext)
    request.serialization = form
    frame = encode(request)
    for bytes_sent, code in ((keys, 0), (other, 16)):
        wire = Wire("10.0.0.1:4")
        guarded.rig.broker.handle(guarded.rig.decoded(frame.replace(place, bytes_sent)), wire)  # type: ignore[arg-type]
        assert [answer.code for answer in wire.take()] == [code]
    assert guarded.rig.bodies("Orders") == [b"hello"]
