"""Takes in runs beside the pure engine: settings, headers and groups that change; odd acknowledgements."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve

from rmq.protocol.codes import BATCH_ACK_MESSAGE
from rmq.protocol.frames import Decoder
from tests.compiled import HAS_COMPILED
from tests.stateful.engines import Side, json_frame, pull_frame
from tests.stateful.take_machine import Takes, pop_frame

pytestmark = HAS_COMPILED


def codes(peer: Any) -> list[int]:
    found = [one.code for one in Decoder().feed(peer.frames)]
    peer.frames = b""
    return found


def test_a_change_of_settings_holds_for_pops_that_have_come_already() -> None:
    """The bytes come, then reading is forbidden, then the requests are handled."""
    takes = Takes()
    takes.warm()
    frames = pop_frame(900_001, {}) + pop_frame(900_002, {})
    seen = []
    for side in takes.sides:
        side.peers[0].frames = b""
        requests: Any = side.decoders[0].feed(frames)
        new = evolve(side.broker.config, broker_permission=2)
        side.broker.settings.replace(new, side.store.config)
        while requests:
            chunk = requests[:1] if side.in_turns else requests
            requests = requests[side.broker.handle(chunk, side.peers[0]) :]  # type: ignore[arg-type]
        seen.append(codes(side.peers[0]))
    assert seen[0] == seen[1]


@pytest.mark.parametrize("code", [b"200151", b"310"])
def test_of_a_header_with_two_codes_the_last_counts(code: bytes) -> None:
    takes = Takes()
    takes.warm()
    seen = []
    for side in takes.sides:
        side.peers[0].frames = b""
        for opaque in (900_001, 900_002, 900_003):
            frame = pop_frame(opaque, {})
            header = frame[8:].replace(b'"flag":0', b'"flag":0,"code":' + code)
            side.receive(0, (4 + len(header)).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header)
        seen.append(codes(side.peers[0]))
    assert seen[0] == seen[1]


def test_a_deleted_group_stays_deleted() -> None:
    """A pop without a lane and the deletion of its group in one chunk."""
    takes = Takes()
    takes.warm()
    tables = []
    for side in takes.sides:
        side.receive(0, pop_frame(800_000, {"consumerGroup": "others"}))
        delete = json_frame(207, 900_002, 0, {"groupName": "others", "cleanOffset": "true"}, b"", "java")
        side.receive(0, pop_frame(900_001, {"consumerGroup": "others", "maxMsgNums": "7"}) + delete)
        tables.append(sorted(side.broker.groups.table))
    assert tables[0] == tables[1]


def test_a_group_that_is_deleted_in_the_chunk_of_its_pull_stays_deleted() -> None:
    takes = Takes()
    takes.warm()
    tables = []
    for side in takes.sides:
        side.receive(0, pull_frame(800_000, {"consumerGroup": "others"}))
        delete = json_frame(207, 900_002, 0, {"groupName": "others", "cleanOffset": "true"}, b"", "java")
        side.receive(0, pull_frame(900_001, {"consumerGroup": "others", "queueId": "1"}) + delete)
        tables.append(sorted(side.broker.groups.table))
    assert tables[0] == tables[1]


BODIES = [
    b'{"acks":[{"c":"takers","t":"Orders","so":%d,"q":0,"pt":1,"b":"AQ=="}]}' % (10**30),
    b'{"acks":[{"c":"takers","t":"Orders","so":' + b"9" * 5000 + b',"q":0,"pt":1,"b":"AQ=="}]}',
    b'{"acks":[{"c":null,"t":null,"so":null,"q":null,"pt":null,"b":null}]}',
    b'{"acks":[null]}',
    b'{"acks":null}',
    b'{"acks":{}}',
    b'{"acks":[{}]}',
    b'{"acks":[{"c":["x"],"t":{"a":1},"so":1,"q":0,"pt":1,"b":"AQ=="}]}',
    b'{"acks":[{"c":"takers","t":"Orders","so":1.5,"q":0,"pt":1,"b":"AQ=="}]}',
    b'{"acks":[{"c":"takers","t":"Orders","so":NaN,"q":0,"pt":1,"b":"AQ=="}]}',
    b'{"acks":[{"c":"takers","t":"Orders","so":0,"q":0,"pt":1,"b":"A"}]}',
    '{"acks":[{"c":"takers","t":"Orders","so":0,"q":0,"pt":1,"b":"é"}]}'.encode(),
    b'{"acks":[{"c":"\\ud800","t":"Orders","so":0,"q":0,"pt":1,"b":""}]}',
    b'{"acks":[{"c":"takers","t":"Orders","so":0,"q":0,"pt":1,"b":[1]}]}',
    b"",
    b"\xff\xfe",
    b"[" * 60_000,
    b'{"acks":[' + b"[" * 50_000,
    b'{"acks":"x"}',
    b"null",
    b"5",
    b"[]",
    b'{"acks":[{"c":"takers","t":"Orders","so":"1","q":"0","pt":"1","b":""}]}',
]


@pytest.mark.parametrize("body", range(len(BODIES)))
def test_odd_acknowledgements(body: int) -> None:
    takes = Takes()
    takes.warm()
    seen = []
    for side in takes.sides:
        side.peers[0].frames = b""
        for opaque in (900_001, 900_002):
            side.receive(0, json_frame(BATCH_ACK_MESSAGE, opaque, 0, {}, BODIES[body], "java"))
        seen.append(side.peers[0].frames)
        side.peers[0].frames = b""
    assert seen[0] == seen[1]


def test_the_bytes_of_an_answer_of_old_messages() -> None:
    """Messages that count as being on disk, with a larger bound there than in memory."""
    takes = Takes()
    takes.warm()
    seen = []
    for side in takes.sides:
        store: Any = evolve(
            side.store.config,
            max_transfer_bytes_on_message_in_memory=700,
            max_transfer_bytes_on_message_in_disk=65_536,
        )
        side.broker.settings.replace(side.broker.config, store)
        limits = side.store._limits
        limits.memory = 0
        limits.bytes_in_memory, limits.bytes_in_disk = 700, 65_536
        side.peers[0].frames = b""
        for opaque in (900_001, 900_002, 900_003):
            side.receive(0, pop_frame(opaque, {}))
        seen.append(side.peers[0].frames)
        side.peers[0].frames = b""
    assert seen[0] == seen[1]


def test_a_change_of_settings_holds_for_the_pops_of_its_chunk() -> None:
    """A chunk forbids reading, and pops."""
    takes = Takes()
    takes.warm()
    seen = []
    for side in takes.sides:
        side.peers[0].frames = b""
        update = json_frame(25, 900_000, 0, {}, b"brokerPermission=2\n", "java")
        pops = [pop_frame(900_001 + number, {}) for number in range(3)]
        side.receive(0, pops[0] + update + pops[1] + pops[2])
        assert side.broker.config.broker_permission == 2
        seen.append(codes(side.peers[0]))
    assert seen[0] == seen[1]


def test_pops_that_name_their_attempt_share_a_lane() -> None:
    takes = Takes()
    takes.warm()
    side: Side = takes.sides[0]
    for number in range(100):
        side.receive(0, pop_frame(number, {"attemptId": f"attempt-{number}"}))
    assert len(side.broker._take_lanes) < 20  # type: ignore[attr-defined]
