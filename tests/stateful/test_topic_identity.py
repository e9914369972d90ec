"""Topics that are deleted and made again, between sends, pulls, commits and restarts: members miss nothing
of the topic that is there.

A member is a client as Java's and ours are, in a few lines: it keeps a position, moves it as answers and
notices say, and asks for the group's offset only when it joins.
"""

from __future__ import annotations

import hypothesis
import pytest
from hypothesis import strategies as st

from rmq.protocol.bodies import ConsumerData, HeartbeatData, ResetOffsetBody, SubscriptionData
from rmq.protocol.codes import RequestCode, ResponseCode
from rmq.protocol.command import Command
from rmq.protocol.record import decode_records
from rmq.testing.front import Wire
from tests.unit.broker.rig import Rig, pull


class Play:
    """A broker with one topic of one queue, and a connected member of a group."""

    def __init__(self) -> None:
        self.rig = Rig()
        self.rig.topic("T", 1)
        self.sent: list[bytes] = []
        """Of the topic that is there now."""
        self.count = 0
        self.member = Member(self.rig)

    def send(self, count: int) -> None:
        for _ in range(count):
            self.count += 1
            self.sent.append(b"%d" % self.count)
            self.rig.put("T", body=self.sent[-1])

    def make_again(self) -> None:
        assert self.rig.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"}).code == 0
        self.member.take_notices()
        self.member.commit()  # refused: there is no such topic
        self.rig.topic("T", 1)
        self.sent, self.member.got = [], set()

    def restart(self, *, clean: bool) -> None:
        rig = self.rig
        for name, table in (("topics", rig.topics), ("consumerOffset", rig.offsets)):
            rig.store.save_config(name, table.to_json())
        if clean:
            rig.store.close()
        self.rig = Rig(disk=rig.disk if clean else rig.disk.copy())
        self.member.connect(self.rig)

    def do(self, step: tuple[str, int]) -> None:
        name, number = step
        if name == "send":
            self.send(number)
        elif name == "pull":
            self.member.pull()
        elif name == "commit":
            self.member.commit()
        elif name == "make again":
            self.make_again()
        elif name == "restart":
            self.restart(clean=number % 2 == 0)
        else:
            self.member.join()


class Member:
    def __init__(self, rig: Rig) -> None:
        self.position = 0
        self.got: set[bytes] = set()
        self.connect(rig)

    def connect(self, rig: Rig) -> None:
        self.rig, self.wire = rig, Wire()
        subscribed = [SubscriptionData("T", "*", sub_version=1)]
        group = ConsumerData("g", "CONSUME_PASSIVELY", "CLUSTERING", "CONSUME_FROM_LAST_OFFSET", subscribed)
        body = HeartbeatData("client", consumer_data_set=[group]).to_json()
        self.rig.answer(Command.request(RequestCode.HEART_BEAT, body=body), self.wire)

    def join(self) -> None:
        """Begin anew, where the group is."""
        header = {"consumerGroup": "g", "topic": "T", "queueId": "0"}
        answer = self.rig.call(RequestCode.QUERY_CONSUMER_OFFSET, header)
        assert answer.code == 0
        self.position = int(answer.ext["offset"])

    def commit(self) -> int:
        header = {"consumerGroup": "g", "topic": "T", "queueId": "0", "commitOffset": str(self.position)}
        return self.rig.call(RequestCode.UPDATE_CONSUMER_OFFSET, header).code

    def take_notices(self) -> None:
        for notice in self.wire.take():
            if notice.code == RequestCode.RESET_CONSUMER_CLIENT_OFFSET:
                (self.position,) = ResetOffsetBody.from_json(notice.body).offset_table.values()

    def pull(self) -> bool:
        """Pull once; whether that brought anything new."""
        self.take_notices()
        answer = self.rig.one(pull("T", consumer_group="g", offset=self.position))
        before = self.position
        self.position = int(answer.ext["nextBeginOffset"])
        if answer.code == ResponseCode.SUCCESS:
            self.got |= {message.body for message in decode_records(answer.body)}
        return self.position != before


NAMES = ("send",) * 4 + ("pull", "commit", "make again", "join", "restart")
STEPS = st.tuples(st.sampled_from(NAMES), st.integers(1, 40))


@hypothesis.settings(max_examples=250, deadline=None)
@hypothesis.given(st.lists(STEPS, min_size=8, max_size=30))
def test_members_miss_nothing_of_the_topic_that_is_there(steps: list[tuple[str, int]]) -> None:
    play = Play()
    for step in steps:
        play.do(step)
    while play.member.pull():
        pass
    assert play.member.got >= set(play.sent)
    assert play.member.commit() == 0
    assert play.rig.offsets.get("g", "T", 0) == len(play.sent)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("count", range(1, 30, 7))
def test_a_member_that_does_not_hear_of_the_deletion_misses_nothing_either(count: int, clean: bool) -> None:
    """Unless it comes when the new topic has more messages than its position says."""
    play = Play()
    play.send(30)
    while play.member.pull():
        pass
    play.member.commit()
    play.member.wire.take()
    play.make_again()
    play.member.position = 30
    play.send(count)
    play.restart(clean=clean)
    assert play.member.commit() == ResponseCode.SYSTEM_ERROR
    while play.member.pull():
        pass
    assert play.member.got == set(play.sent)
