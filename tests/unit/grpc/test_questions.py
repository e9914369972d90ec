"""Questions of administrators to consumers that are connected by gRPC: stacks, and consuming a message."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from rmq_grpc import clients, schema
from rmq_grpc.statuses import Code
from trio.testing import MockClock

import rmq
from rmq.errors import ResponseError
from rmq.testing.cluster import Cluster
from tests.unit.grpc.calls import client, cluster, consumer, message, sending, telemetry
from tests.unit.grpc.channel import CallOf, Channel

Command = schema.message("TelemetryCommand")


@asynccontextmanager
async def asked() -> AsyncIterator[tuple[Cluster, Channel, CallOf, rmq.Client]]:
    """A consumer on the door, its stream, and an administrator."""
    async with cluster() as running, client(running) as one, running.connect() as admin:
        call, _ = await telemetry(one, **consumer())
        yield running, one, call, admin


async def question(call: CallOf, count: int = 2) -> Any:
    """The last of so many commands that the server has written."""
    with anyio.fail_after(60):
        return (await call.until(count))[count - 1]


def answer(kind: str, nonce: str, code: str = "OK", **fields: Any) -> Any:
    made = Command()
    made.status.code = Code[code]
    part = getattr(made, kind)
    part.nonce = nonce
    for name, value in fields.items():
        setattr(part, name, value)
    return made


async def test_the_stacks_of_a_consumer_are_asked_for(autojump_clock: MockClock) -> None:
    async with asked() as (_, _, call, admin), anyio.create_task_group() as tasks:
        found: list[Any] = []

        async def ask() -> None:
            found.append(await admin.admin.consumer_running_info("G", "client@1", stack=True))

        tasks.start_soon(ask)
        nonce = (await question(call)).print_thread_stack_trace_command.nonce
        await call.send(answer("thread_stack_trace", "none of ours", thread_stack_trace="x"))
        await call.send(answer("thread_stack_trace", nonce, thread_stack_trace="main RUNNING"))
    (info,) = found
    assert info.jstack == "main RUNNING"
    assert [one.topic for one in info.subscription_set] == ["Orders"]


async def test_a_consumer_tells_of_itself_without_being_asked(autojump_clock: MockClock) -> None:
    async with asked() as (_, _, call, admin):
        info = await admin.admin.consumer_running_info("G", "client@1")
        assert info.jstack is None
        assert info.properties["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
        assert len(call.messages) == 1


@pytest.mark.parametrize(
    ("code", "result"), [("OK", "CR_SUCCESS"), ("FAILED_TO_CONSUME_MESSAGE", "CR_LATER")]
)
async def test_a_consumer_consumes_the_message_that_an_administrator_names(
    autojump_clock: MockClock, code: str, result: str
) -> None:
    async with asked() as (running, one, call, admin), anyio.create_task_group() as tasks:
        await one.one("SendMessage", sending(message(b"look", tag="t")))
        (stored,) = running.sent("Orders")
        found: list[Any] = []

        async def ask() -> None:
            found.append(
                await admin.admin.consume_directly("G", "client@1", stored.offset_message_id, "Orders")
            )

        tasks.start_soon(ask)
        command = (await question(call)).verify_message_command
        assert (command.message.body, command.message.system_properties.tag) == (b"look", "t")
        await call.send(answer("verify_message_result", command.nonce, code))
    assert found[0].consume_result == result


async def test_a_consumer_that_does_not_answer_costs_that_question_alone(autojump_clock: MockClock) -> None:
    async with asked() as (_, one, call, admin):
        began = anyio.current_time()
        with pytest.raises(ResponseError, match="client@1"):
            await admin.admin.consumer_running_info("G", "client@1", stack=True)
        assert anyio.current_time() - began < 15
        assert not call.is_over
        assert (await one.one("SendMessage", sending(message()))).status.code == Code["OK"]


async def test_a_consumer_that_cannot_is_said_to(autojump_clock: MockClock) -> None:
    async with asked() as (_, _, call, admin), anyio.create_task_group() as tasks:

        async def ask() -> None:
            with pytest.raises(ResponseError, match="UNSUPPORTED"):
                await admin.admin.consumer_running_info("G", "client@1", stack=True)

        tasks.start_soon(ask)
        nonce = (await question(call)).print_thread_stack_trace_command.nonce
        await call.send(answer("thread_stack_trace", nonce, "UNSUPPORTED"))


async def test_questions_without_an_answer_are_bounded(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "QUESTIONS_MAX", 3)
    async with asked() as (_, _, call, admin), anyio.create_task_group() as tasks:
        refused = []

        async def ask() -> None:
            try:
                await admin.admin.consumer_running_info("G", "client@1", stack=True)
            except ResponseError as error:
                refused.append("questions to answer already" in str(error))

        for _ in range(4):
            tasks.start_soon(ask)
        await question(call, 4)
    assert sorted(refused) == [False, False, False, True]
