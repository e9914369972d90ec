"""Commands: what requests and replies carry, and how headers are read from them."""

from __future__ import annotations

import struct
from itertools import cycle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq.errors import LocalProtocolError, RemoteProtocolError
from rmq.protocol import headers
from rmq.protocol.codes import RequestCode, ResponseCode
from rmq.protocol.command import JSON, ROCKETMQ, Command, next_opaque
from rmq.protocol.frames import SKIPPED_FRAMES, Decoder, encode

SEND = headers.SendMessageRequestHeader(
    "Group", "Topic", "TBW102", 4, 1, 0, 1_700_000_000_000, 0, "TAGS\x01a", 2, True, False, 16, "broker-a"
)


def over_the_wire(command: Command, serialization: int = JSON) -> Command:
    command.serialization = serialization
    (decoded,) = Decoder().feed(encode(command))
    return decoded


def test_opaques_are_new_and_fit_31_bits() -> None:
    first, second = next_opaque(), next_opaque()
    assert 0 < first < second < 2**31
    assert Command.request(105).opaque > second


def test_a_request_says_who_we_are() -> None:
    request = Command.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"}, b"body", remark="why")
    assert type(request.code) is int
    assert (request.code, request.flag, request.language, request.version) == (105, 0, "PYTHON", 407)
    assert (request.ext, request.body, request.remark) == ({"topic": "T"}, b"body", "why")
    assert (request.is_response, request.is_oneway) == (False, False)
    assert Command.request(105, oneway=True).is_oneway
    assert Command.request(34).ext == {}


@pytest.mark.parametrize("serialization", [JSON, ROCKETMQ])
@pytest.mark.parametrize("code", [10, 310, 320, 324, 325])
def test_every_kind_of_send_is_read_by_one_class(code: int, serialization: int) -> None:
    request = Command.request(code, SEND, b"body")
    assert ("a" in request.ext) == (code in (310, 320, 325))
    assert ("producerGroup" in request.ext) == (code in (10, 324))
    header = over_the_wire(request, serialization).read(headers.SendMessageRequestHeader)
    for name in headers.SendMessageRequestHeader.__slots__:
        if not name.startswith("__"):
            assert getattr(header, name) == getattr(SEND, name), name


@pytest.mark.parametrize("serialization", [JSON, ROCKETMQ])
def test_what_may_be_missing_is_none_or_false(serialization: int) -> None:
    short = headers.SendMessageRequestHeader("G", "T", "D", 4, 1, 0, 5, 0)
    header = over_the_wire(Command.request(310, short), serialization).read(headers.SendMessageRequestHeader)
    assert (header.properties, header.reconsume_times, header.max_reconsume_times, header.bname) == (
        None,
    ) * 4
    assert (header.unit_mode, header.batch) == (False, False)


@pytest.mark.parametrize("serialization", [JSON, ROCKETMQ])
@pytest.mark.parametrize(("unit_mode", "batch"), [(True, True), (True, False), (False, True), (False, False)])
def test_flags_of_a_send(unit_mode: bool, batch: bool, serialization: int) -> None:
    sent = headers.SendMessageRequestHeader("G", "T", "D", 4, 1, 0, 5, 0, None, 0, unit_mode, batch)
    header = over_the_wire(Command.request(320, sent), serialization).read(headers.SendMessageRequestHeader)
    assert (header.unit_mode, header.batch) == (unit_mode, batch)


@pytest.mark.parametrize("serialization", [JSON, ROCKETMQ])
def test_a_reply_answers_in_kind(serialization: int) -> None:
    request = over_the_wire(Command.request(310, SEND), serialization)
    header = headers.SendMessageResponseHeader("ID", 1, 2)
    (reply,) = Decoder().feed(encode(request.reply(ResponseCode.SUCCESS, None, header, b"b")))
    assert (reply.serialization, reply.opaque, reply.flag) == (serialization, request.opaque, 1)
    assert reply.is_response
    assert reply.read(headers.SendMessageResponseHeader) == header
    refused = request.reply(17, "no such topic", {"a": "b"})
    assert (refused.code, refused.remark, refused.ext, refused.body) == (17, "no such topic", {"a": "b"}, b"")


def test_an_empty_remark_is_a_remark() -> None:
    assert over_the_wire(Command.request(105, remark="")).remark == ""
    assert over_the_wire(Command.request(105)).remark is None
    assert over_the_wire(Command.request(105, remark=""), ROCKETMQ).remark is None  # has no form for it


def test_a_header_is_read_once() -> None:
    command = Command.request(15, {"consumerGroup": "g", "topic": "t", "queueId": "1", "commitOffset": "2"})
    first = command.read(headers.UpdateConsumerOffsetRequestHeader)
    assert command.read(headers.UpdateConsumerOffsetRequestHeader) is first


def test_what_the_decoder_made_is_not_made_again() -> None:
    command = over_the_wire(Command.request(310, SEND))
    made = command.header
    assert made is not None
    assert made is None or command.read(headers.SendMessageRequestHeader) is made


@pytest.mark.parametrize("serialization", [JSON, ROCKETMQ])
def test_the_class_asked_for_is_the_class_given(serialization: int) -> None:
    """A plugin may look at a send with another class than the one that the decoder made."""
    command = over_the_wire(Command.request(310, SEND), serialization)
    assert command.read(headers.SendMessageRequestHeader).topic == "Topic"
    other = command.read(headers.ResumeCheckHalfMessageRequestHeader)
    assert type(other) is headers.ResumeCheckHalfMessageRequestHeader
    assert command.read(headers.SendMessageRequestHeader).topic == "Topic"


def test_errors_name_the_field() -> None:
    with pytest.raises(RemoteProtocolError, match="topic is missing"):
        Command.request(310, {"a": "G"}).read(headers.SendMessageRequestHeader)
    with pytest.raises(RemoteProtocolError, match="queueId"):
        Command.request(15, {"consumerGroup": "g", "topic": "t", "queueId": "x", "commitOffset": "2"}).read(
            headers.UpdateConsumerOffsetRequestHeader
        )


@pytest.mark.parametrize("serialization", [JSON, ROCKETMQ])
def test_a_send_with_an_unreadable_field_is_still_a_command(serialization: int) -> None:
    """One bad header is refused; it does not end the connection."""
    command = over_the_wire(Command.request(310, {"a": "G", "b": "T", "e": "one"}), serialization)
    assert (command.code, command.ext["e"]) == (310, "one")
    with pytest.raises(RemoteProtocolError):
        command.read(headers.SendMessageRequestHeader)


@pytest.mark.parametrize("serialization", [JSON, ROCKETMQ])
@pytest.mark.parametrize("ext", [{"topic": "\ud800"}, {"\udfff": "x"}], ids=["value", "name"])
def test_a_text_without_utf8_is_our_own_error(ext: dict[str, str], serialization: int) -> None:
    command = Command.request(105, ext)
    command.serialization = serialization
    with pytest.raises(LocalProtocolError, match="105"):
        encode(command)


def test_numbers_that_do_not_fit_the_binary_form_are_our_own_error() -> None:
    command = Command.request(40_000, {"a": "b"})
    command.serialization = ROCKETMQ
    with pytest.raises(LocalProtocolError, match="40000"):
        encode(command)


def test_repr_names_what_a_log_needs() -> None:
    assert "request 105" in repr(Command.request(105, {"topic": "T"}))
    assert "'topic': 'T'" in repr(Command.request(105, {"topic": "T"}))
    assert "oneway 15" in repr(Command.request(15, oneway=True))
    assert "response 17" in repr(Command.request(105).reply(17, "no topic"))
    assert "no topic" in repr(Command.request(105).reply(17, "no topic"))


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_kind_of_bytes_may_be_fed(kind: type) -> None:
    frame = encode(Command.request(310, SEND, b"body"))
    decoder = Decoder()
    (command,) = decoder.feed(kind(frame))
    assert (command.body, type(command.body)) == (b"body", bytes)
    assert decoder.feed(kind(frame[:10])) == []
    (command,) = decoder.feed(kind(frame[10:]))
    assert command.read(headers.SendMessageRequestHeader).topic == "Topic"


def test_what_is_buffered() -> None:
    frame = encode(Command.request(105, {"topic": "T"}))
    decoder = Decoder()
    assert (decoder.feed(b""), decoder.buffered) == ([], 0)
    assert (decoder.feed(frame[:3]), decoder.buffered) == ([], 3)
    assert len(decoder.feed(frame[3:] + frame + frame[:7])) == 2
    assert decoder.buffered == 7
    assert len(decoder.feed(frame[7:])) == 1
    assert decoder.buffered == 0


@given(
    st.lists(st.integers(0, 20_000), min_size=1, max_size=4),
    st.lists(st.sampled_from([1, 3, 7, 8, 100, 4095, 4096, 5000, 30_000]), min_size=1, max_size=6),
)
def test_frames_are_the_same_however_they_are_cut(sizes: list[int], cuts: list[int]) -> None:
    commands = [Command.request(105, {"topic": "T"}, bytes(size)) for size in sizes]
    stream = b"".join(map(encode, commands))
    decoder, found, at, fed = Decoder(), [], 0, 0
    for cut in cycle(cuts):
        fed += len(stream[at : at + cut])
        found += decoder.feed(stream[at : at + cut])
        complete = sum(len(encode(command)) for command in commands[: len(found)])
        assert decoder.buffered == fed - complete
        at += cut
        if at >= len(stream):
            break
    assert list(map(encode, found)) == list(map(encode, commands))


def test_bytes_that_drip_are_not_kept_one_by_one() -> None:
    frame = encode(Command.request(105, {"topic": "T"}, bytes(10_000)))
    decoder = Decoder()
    for at in range(len(frame) - 1):
        assert decoder.feed(frame[at : at + 1]) == []
    assert len(decoder._pieces) < 10
    assert len(decoder.feed(frame[-1:])) == 1


def test_a_frame_too_long_to_be_dropped_ends_at_its_length() -> None:
    decoder = Decoder(1000)
    decoder.feed(struct.pack(">ii", 1000 * SKIPPED_FRAMES, 100))
    with pytest.raises(RemoteProtocolError, match="limit of 1000"):
        Decoder(1000).feed(struct.pack(">ii", 1000 * SKIPPED_FRAMES + 1, 100))
