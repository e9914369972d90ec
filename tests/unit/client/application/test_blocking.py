"""The client without async, against an embedded system in another thread."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import anyio
import pytest
from anyio.from_thread import start_blocking_portal

import rmq
from rmq import embedded
from rmq.client import blocking
from rmq.errors import ConfigError, LocalProtocolError, MessageIllegal, ReplyTimeout, ResponseError
from rmq.message import Message, StoredMessage


@contextmanager
def system(folder: pathlib.Path) -> Iterator[str]:
    with (
        start_blocking_portal("trio") as portal,
        portal.wrap_async_context_manager(embedded.open(folder)) as made,
    ):
        yield made.namesrv_address


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with system(tmp_path_factory.mktemp("embedded")) as address:
        yield address


@pytest.fixture(params=["asyncio", "trio"])
def client(request: pytest.FixtureRequest, names: str) -> Iterator[blocking.Client]:
    with blocking.connect(names, backend=request.param) as made:
        yield made


def topic(client: blocking.Client, name: str) -> str:
    """A topic of this test and loop alone."""
    return f"{name}-{client._backend}"


def test_it_is_known_to_brokers_by_its_id(client: blocking.Client) -> None:
    assert client.client_id == client._inner.client_id
    assert "@" in client.client_id


def test_send_and_consume(client: blocking.Client) -> None:
    name = topic(client, "Plain")
    with client.producer("p") as producer:
        assert producer.send(Message(name, b"0")).status == "SEND_OK"
        results = producer.send_many([Message(name, b"%d" % number) for number in range(1, 20)])
        assert len({result.message_id for result in results}) == 19
        producer.send_batch([Message(name, b"20"), Message(name, b"21")])
        with pytest.raises(MessageIllegal, match="empty"):
            producer.send(Message(name, b""))
        with pytest.raises(MessageIllegal, match="empty"):
            producer.send_many([Message(name, b"22"), Message(name, b"")])
    bodies: set[bytes] = set()
    expected = {b"%d" % number for number in range(22)}
    with client.consumer("c-" + name, {name: "*"}, consume_from="first") as consumer:
        assert consumer.queues
        for delivery in consumer:
            with delivery as message:
                bodies.add(message.body)
                if message.body == b"5" and not message.reconsume_times:
                    raise ValueError("is logged and comes again")
            if bodies >= expected:
                break


def test_a_handler_runs_in_worker_threads(client: blocking.Client) -> None:
    name = topic(client, "Threads")
    with client.producer("p") as producer:
        producer.send_many([Message(name, b"x")] * 12)
    threads: set[int] = set()
    lock, running, most, left = threading.Lock(), 0, 0, threading.Semaphore(0)
    together = threading.Barrier(3)

    def handle(message: StoredMessage) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        threads.add(threading.get_ident())
        together.wait(20)
        with lock:
            running -= 1
        left.release()

    with client.consumer("c-" + name, {name: "*"}, consume_from="first") as consumer:
        runner = threading.Thread(target=consumer.run, args=(handle,), kwargs={"concurrency": 3})
        runner.start()
        for _ in range(12):
            assert left.acquire(timeout=20)
    runner.join(20)
    assert not runner.is_alive()
    assert most == 3
    assert threading.get_ident() not in threads


def test_transactions(client: blocking.Client) -> None:
    name = topic(client, "Transactions")
    with client.transactional_producer("t", lambda message: rmq.COMMIT) as producer:
        with producer.transaction(Message(name, b"committed")) as transaction:
            assert transaction.result.status == "SEND_OK"
        with pytest.raises(ValueError, match="no"), producer.transaction(Message(name, b"rolled back")):
            raise ValueError("no")
    with client.pull_consumer("c-" + name) as puller:
        puller.subscribe({name: "*"}, consume_from="first")
        assert [message.body for message in puller.poll()] == [b"committed"]


def test_received_messages_are_acknowledged_by_themselves(client: blocking.Client) -> None:
    name = topic(client, "Singly")
    with (
        client.producer("p") as producer,
        client.simple_consumer("singly", {name: "*"}, consume_from="first") as consumer,
    ):
        producer.send(Message(name, b"0"))
        (message,) = consumer.receive(1, wait=30, invisible=60)
        message.extend(120)
        message.nack(after=0)
        (message,) = consumer.receive(1, wait=30, invisible=60)
        assert (message.body, message.attempt) == (b"0", 2)
        message.ack()
        with pytest.raises(ResponseError):
            message.extend(120)


def test_pulling(client: blocking.Client) -> None:
    name = topic(client, "Pulled")
    with client.producer("p") as producer:
        queue = producer.send(Message(name, b"0")).message_queue
        producer.send(Message(name, b"1"), queue=queue)
    with client.pull_consumer("c-" + name) as puller:
        assert queue in puller.message_queues(name)
        assert (puller.min_offset(queue), puller.max_offset(queue)) == (0, 2)
        assert [m.body for m in puller.pull(queue, 0).messages] == [b"0", b"1"]
        puller.commit(queue, 1)
        assert puller.committed(queue) == 1
        puller.assign([queue])
        assert [m.body for m in puller.poll()] == [b"1"]
        puller.seek(queue, 0)
        puller.pause(queue)
        assert puller.poll(timeout=0.05) == []
        puller.resume(queue)
        assert [m.body for m in puller.poll()] == [b"0", b"1"]


def test_requests(client: blocking.Client) -> None:
    name = topic(client, "Questions")
    with client.producer("p") as producer:
        with pytest.raises(ReplyTimeout):
            producer.request(Message(name, b"?"), timeout=0.2)
        with client.consumer("c-" + name, {name: "*"}, consume_from="first") as consumer:

            def answer() -> None:
                for delivery in consumer:
                    with delivery as message:
                        producer.reply(message, b"17")

            thread = threading.Thread(target=answer)
            thread.start()
            assert producer.request(Message(name, b"hz"), timeout=20).body == b"17"
        thread.join(20)
        assert not thread.is_alive()


def test_an_interrupted_call_is_cancelled(client: blocking.Client) -> None:
    with client.consumer("c-interrupted", {"Questions": "*"}) as consumer:
        parked = consumer._inner._dispatch.ready.parked

        def interrupt() -> None:
            while not parked:  # the call has come to where it waits
                os.sched_yield()
            os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            consumer.take(60)
        thread.join(20)
        for _ in range(1000):
            if not consumer._portal.call(len, parked):
                break
        assert not parked


def test_a_delivery_that_is_there_is_taken_without_the_other_thread(client: blocking.Client) -> None:
    """And what ended well is finished there all the same: committed, and not delivered again."""
    name = topic(client, "Taken")
    with client.producer("p") as producer:
        producer.send_many([Message(name, b"%d" % number) for number in range(200)])
    got = []
    soon = rmq.Backoff(0.1, 1)
    with client.consumer("c-" + name, {name: "*"}, consume_from="first", retry=soon) as consumer:
        for delivery in consumer:
            with delivery as message:
                got.append(int(message.body))
                if message.body == b"7" and got.count(7) == 1:
                    raise ValueError("once more")
            if len(got) == 200:
                break
    assert sorted(got) == list(range(200))
    with client.consumer("c-" + name, {name: "*"}, consume_from="first") as consumer:
        again = consumer.take(30)
        assert again is not None
        with again as message:
            assert message.body == b"7"
        assert consumer.take(0.2) is None


def test_wrong_uses(names: str) -> None:
    closed = blocking.connect(names)
    with pytest.raises(LocalProtocolError, match="not open"):
        closed.producer("p")
    with pytest.raises(ConfigError):
        blocking.connect("")


def test_administration(client: blocking.Client) -> None:
    name = topic(client, "Made")
    assert client.admin.create_topic(name, queues=3)
    with client.pull_consumer("looks") as puller:
        assert len(puller.message_queues(name)) == 3
        assert name in puller.topics()
        puller.assign(puller.message_queues(name))
        assert puller.position(puller.message_queues(name)[0]) == 0
        assert client.dead_letters("nobody") == []
        assert client.redrive("nobody").sent == 0
        assert client.discarded_transactions() == []


def test_sync_handlers_run_in_bounded_worker_threads(client: blocking.Client) -> None:
    name = topic(client, "Bounded")
    lock, done, running, most = threading.Lock(), threading.Event(), 0, 0
    seen: list[bytes] = []

    def handle(message: StoredMessage) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        reached.wait(5)  # all four are in here at once
        with lock:
            running -= 1
            seen.append(message.body)
            if len(seen) == 40:
                done.set()

    reached = threading.Barrier(4)
    with client.producer("p") as producer:
        producer.send_many([Message(name, b"%d" % number) for number in range(40)])
    with client.consumer("g-" + name, {name: "*"}, consume_from="first") as consumer:
        future: Future[None] = Future()

        def run() -> None:
            try:
                consumer.run(handle, concurrency=4)
            finally:
                future.set_result(None)

        threading.Thread(target=run, daemon=True).start()
        assert done.wait(20)
    future.result(20)
    assert most == 4
    assert len(set(seen)) == 40


def test_opened_and_closed_without_a_block(names: str) -> None:
    client = blocking.connect(names)
    client.close()  # never opened: nothing
    client.open()
    producer = client.producer("without-a-block").open()
    assert producer.send(Message("Plain", b"1")).status == "SEND_OK"
    producer.close()
    with pytest.raises(LocalProtocolError):
        producer.send(Message("Plain", b"2"))
    client.close()
    client.close()


def test_one_that_fails_at_its_end_keeps_neither_others_nor_the_thread(names: str) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    others = set(threading.enumerate())  # also of clients that tests before it left open
    client = blocking.connect(names).open()
    (thread,) = (one for one in set(threading.enumerate()) - others if one.name == "rmq-blocking")
    made = [client.producer(f"closed-{number}").open() for number in range(3)]
    made[1].close = fail  # type: ignore[method-assign]
    with pytest.raises(ZeroDivisionError):
        client.close()
    thread.join(20)
    assert not thread.is_alive()
    assert [producer._inner._is_open for producer in (made[0], made[2])] == [False, False]


def test_the_interpreter_ends_when_a_client_was_not_closed(names: str) -> None:
    code = (
        "import sys\nfrom rmq import ClientConfig\nfrom rmq.client import blocking\n"
        "config = ClientConfig(shutdown_timeout_ms=3_600_000)\n"
        "client = blocking.connect(sys.argv[1], config=config).open()\n"
        "producer = client.producer('left').open()\nprint(len(producer.queues('TBW102')) > 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, names], capture_output=True, text=True, timeout=30, check=True
    )
    assert (done.stdout, done.stderr) == ("True\n", "")


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_used_after_a_fork_it_says_so(names: str, backend: str) -> None:
    """In a process of its own, which has no other threads that a fork would cut off."""
    code = (
        "import os, sys\nfrom rmq.client import blocking\n"
        "with (\n"
        "    blocking.connect(sys.argv[1], backend=sys.argv[2]) as client,\n"
        "    client.producer('forked') as producer,\n"
        "    client.consumer('forked', {'%RETRY%forked': '*'}) as consumer,\n"
        "):\n"
        "    producer.queues('TBW102')\n"  # a call before it, which makes the way into the thread
        "    if not (child := os.fork()):\n"
        "        for call in (\n"
        "            lambda: producer.queues('TBW102'), lambda: consumer.take(1), client.health,\n"
        "            lambda: client.producer('more'), lambda: client.admin.topics(),\n"
        "        ):\n"
        "            try:\n                call()\n"
        "            except Exception as error:\n                print(error, flush=True)\n"
        "        client.close()\n        os._exit(0)\n"
        "    os.waitpid(child, 0)\n    print(len(producer.queues('TBW102')) > 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, names, backend], capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout == "this client was opened before a fork: open one in each process\n" * 5 + "True\n"


def test_many_messages_take_as_many_tasks_as_are_sent_at_a_time(client: blocking.Client) -> None:
    name, most = topic(client, "ManyTasks"), 0
    with client.producer("p") as producer:
        send = producer._inner.send

        async def counted(message: Message) -> Any:
            nonlocal most
            most = max(most, len(anyio.get_running_tasks()))
            return await send(message)

        producer._inner.send = counted  # type: ignore[assignment, method-assign]
        results = producer.send_many([Message(name, b"%d" % number) for number in range(300)], concurrency=4)
        assert len({result.message_id for result in results}) == 300
        with pytest.raises(rmq.ConfigError, match="concurrency"):
            producer.send_many([], concurrency=0)
    assert most < 40
