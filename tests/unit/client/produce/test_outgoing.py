"""The requests of a producer, compared with captured requests of Java's, and the messages that it refuses to
send."""

from __future__ import annotations

import base64
import json
import pathlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq.client.config import ClientConfig
from rmq.client.produce.outgoing import SEND, Outgoing, SendTemplate, pack, pack_batch, read_result
from rmq.client.session.results import SendResult
from rmq.errors import InvalidName, MessageIllegal, RemoteProtocolError
from rmq.message import Message, MessageQueue
from rmq.protocol.command import Command
from rmq.protocol.frames import Decoder, Framed, encode
from rmq.protocol.properties import decode_properties
from rmq.protocol.record import decode_batch

CONFIG = ClientConfig()


def captured(golden: pathlib.Path, code: int) -> list[dict[str, Any]]:
    lines = (golden / "wire_sessions" / "1_producer_send.jsonl").read_text().splitlines()
    frames = map(json.loads, lines)
    return [frame for frame in frames if frame.get("code") == code and frame.get("dir") == "c2s"]


def unique_id(properties: str) -> str:
    return decode_properties(properties)["UNIQ_KEY"]


def queue_of(ext: dict[str, str]) -> MessageQueue:
    return MessageQueue(ext["b"], ext["n"], int(ext["e"]))


def test_a_send_is_the_request_that_java_makes(golden: pathlib.Path) -> None:
    for frame in captured(golden, 310):
        ext = frame["ext"]
        properties = decode_properties(ext["i"])
        body = base64.b64decode(frame.get("body_b64", ""))
        if ext["f"] != "0":
            continue
        message = Message(
            ext["b"],
            body,
            tags=properties.get("TAGS"),
            keys=properties.get("KEYS", ""),
            delay_level=int(properties.get("DELAY", "0")),
        )
        form = SendTemplate(ext["a"], "4")
        outgoing = pack(message, unique_id(ext["i"]), CONFIG)
        request = form.request(outgoing, queue_of(ext), int(ext["g"]), oneway=frame["kind"] == "oneway")
        got = dict(request.ext)
        assert decode_properties(got.pop("i")) == properties
        assert got == {name: value for name, value in ext.items() if name != "i"}
        assert (request.code, request.flag, request.body) == (310, frame["flag"], body)


def test_a_body_is_compressed_from_the_bound_on_as_in_java() -> None:
    for size, compressed in ((CONFIG.compress_over - 1, 0), (CONFIG.compress_over, 1)):
        assert pack(Message("T", b"x" * size), "ID", CONFIG).sys_flag & 1 == compressed


def test_a_batch_is_the_request_that_java_makes(golden: pathlib.Path) -> None:
    (frame,) = captured(golden, 320)
    ext, body = frame["ext"], base64.b64decode(frame["body_b64"])
    parts = decode_batch(body)
    properties = [decode_properties(text) for _, _, text in parts]
    messages = [
        Message(ext["b"], content, tags=known["TAGS"], keys=known["KEYS"])
        for (_, content, _), known in zip(parts, properties, strict=True)
    ]
    ids = [known["UNIQ_KEY"] for known in properties]
    (outgoing,) = pack_batch(messages, ids, CONFIG)
    request = SendTemplate(ext["a"], "4").request(outgoing, queue_of(ext), int(ext["g"]))
    assert request.ext == ext
    got = [(flag, content, decode_properties(text)) for flag, content, text in decode_batch(request.body)]
    assert got == [
        (flag, content, known) for (flag, content, _), known in zip(parts, properties, strict=True)
    ]
    assert len(request.body) == len(body)


@pytest.mark.parametrize(
    ("message", "error", "text"),
    [
        (Message("", b"x"), InvalidName, "it is empty"),
        (Message("../etc", b"x"), InvalidName, "only letters"),
        (Message("T" * 128, b"x"), InvalidName, "128 characters"),
        (Message("SCHEDULE_TOPIC_XXXX", b"x"), MessageIllegal, "system topic"),
        (Message("T", b""), MessageIllegal, "the body is empty"),
        (Message("T", b"x" * (4 * 1024 * 1024 + 1)), MessageIllegal, "4194305 bytes, at most 4194304"),
        (Message("T", b"x", properties={"TAGS": "a"}), MessageIllegal, "TAGS are RocketMQ's own"),
        (Message("T", b"x", properties={"a\x01": "b"}), MessageIllegal, "0x01 and 0x02"),
        (Message("T", b"x", properties={"a": "b\x02c\x01d"}), MessageIllegal, "0x01 and 0x02"),
        (Message("T", b"x", tags="a\x02"), MessageIllegal, "0x01 and 0x02"),
        (Message("T", b"x", properties={"a": "\ud800"}), MessageIllegal, "not Unicode"),
        (Message("T", b"x", properties={"a": "b" * 33_000}), MessageIllegal, "at most 32767"),
    ],
)
def test_what_cannot_be_sent_is_refused_with_the_reason(
    message: Message, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        pack(message, "ID", CONFIG)


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        ([], "the batch is empty"),
        ([Message("T", b"x"), Message("U", b"x")], "one topic, not T and U"),
        ([Message("T", b"x"), Message("T", b"x", delay_level=1)], "cannot be delayed"),
        ([Message("T", b"x"), Message("T", b"x", wait_store=False)], "same wait_store"),
        ([Message("T", b"x"), Message("T", b"")], "the body is empty"),
        ([Message("%RETRY%g", b"x")], "retry topics"),
        ([Message("T", b"x" * 4 * 1024 * 1024)], "bytes with its properties, at most 4194304"),
    ],
)
def test_batches_have_rules(messages: list[Message], text: str) -> None:
    with pytest.raises(MessageIllegal, match=text):
        pack_batch(messages, ["0" * 32] * len(messages), CONFIG)


def test_buffers_are_copied() -> None:
    body = bytearray(b"before")
    outgoing = pack(Message("T", body), "ID", CONFIG)  # type: ignore[arg-type]
    body[:] = b"after!"
    assert outgoing.body == b"before"


def test_compression_can_be_switched_off() -> None:
    outgoing = pack(Message("T", b"x" * 9000), "ID", ClientConfig(compress_over=0))
    assert (len(outgoing.body), outgoing.sys_flag) == (9000, 0)


def test_a_result_names_the_queue_that_the_broker_chose() -> None:
    ext = {"msgId": "A,B", "queueId": "3", "queueOffset": "7", "MSG_REGION": ""}
    result = read_result(Command(0, 1, 1, ext), MessageQueue("T", "a", 0), "ID1,ID2")
    assert result == SendResult("SEND_OK", MessageQueue("T", "a", 3), 7, "ID1,ID2", "A,B")
    assert result.message_ids == ("ID1", "ID2")


@pytest.mark.parametrize("ext", [{}, {"msgId": "A", "queueId": "x", "queueOffset": "1"}])
def test_an_answer_without_its_parts(ext: dict[str, str]) -> None:
    with pytest.raises(RemoteProtocolError, match="the answer to a send to a"):
        read_result(Command(0, 1, 1, ext), MessageQueue("T", "a", 0), "ID")


@given(
    st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=40),
    st.integers(0, 255),
    st.integers(0, 1 << 30),
    st.booleans(),
)
def test_a_frame_made_at_once_says_what_its_command_says(
    properties: str, sys_flag: int, flag: int, is_batch: bool
) -> None:
    template = SendTemplate('g"1', "4")
    queue = MessageQueue("T", "broker-\u00e4", 3)
    outgoing = Outgoing("T", b"body", sys_flag, flag, properties, "ID", is_batch, SEND)
    for _ in range(2):  # the second time by what was kept
        made = template.framed(outgoing, queue, 1234)
        assert isinstance(made, Framed)
        (got,) = Decoder().feed(made.frame)
        command = template.request(outgoing, queue, 1234)
        (wanted,) = Decoder().feed(encode(command))
        assert (got.code, got.flag, got.ext, got.body) == (wanted.code, wanted.flag, wanted.ext, wanted.body)
        assert (got.opaque, got.language, got.version) == (made.opaque, wanted.language, wanted.version)


def test_a_header_with_more_fields_is_made_in_full() -> None:
    queue = MessageQueue("T", "a", 3)
    outgoing = Outgoing("T", b"body", 0, 0, "", "ID", more={"l": "3"})
    made = SendTemplate("g", "4").framed(outgoing, queue, 1)
    assert isinstance(made, Command)
    assert made.ext["l"] == "3"
