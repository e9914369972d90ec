"""`rmq cluster balance` between two real brokers under traffic, killed in the middle and continued."""

from __future__ import annotations

import json
import pathlib
import signal
import subprocess
import sys
import threading
import time

import anyio
import pytest

import rmq
from tests.system.drill import drill, until, write_figures

TOPICS = ("Plain", "Steps")
KEYS = 3


class Clients:
    """Producers of both topics and a group that reads them, until `stop`."""

    def __init__(self, namesrv: str) -> None:
        self.namesrv = namesrv
        self.sent: dict[str, list[str]] = {topic: [] for topic in TOPICS}
        self.got: dict[str, list[str]] = {topic: [] for topic in TOPICS}
        self.failures: list[str] = []
        self.longest = 0.0
        self.last = 0.0
        self.sends = True
        self.runs = True
        self.thread = threading.Thread(target=lambda: anyio.run(self._run))

    async def _run(self) -> None:
        async with rmq.connect(self.namesrv) as client, anyio.create_task_group() as tasks:
            for topic in TOPICS:
                for key in range(KEYS):
                    tasks.start_soon(self._send, client, topic, key)
                tasks.start_soon(self._read, client, topic)
            while self.runs:
                await anyio.sleep(0.1)
            tasks.cancel_scope.cancel()

    async def _send(self, client: rmq.Client, topic: str, key: int) -> None:
        async with client.producer(f"p-{topic}-{key}") as producer:
            number = 0
            while self.sends:
                body = f"{key}-{number}"
                try:
                    await producer.send(rmq.Message(topic, body.encode()), sharding_key=str(key))
                except rmq.RmqError as error:
                    self.failures.append(f"{topic} {body}: {error!r}")
                else:
                    self.sent[topic].append(body)
                    now = time.monotonic()
                    self.longest = max(self.longest, now - (self.last or now))
                    self.last = now
                    number += 1
                await anyio.sleep(0.1)

    async def _read(self, client: rmq.Client, topic: str) -> None:
        async with client.consumer(
            f"group-{topic}", {topic: "*"}, consume_from="first", ordered=topic == "Steps"
        ) as consumer:
            async for delivery in consumer:
                async with delivery as message:
                    self.got[topic].append(message.body.decode())


@pytest.mark.runbooks
def test_a_balance_that_is_killed_is_continued_and_nothing_is_lost_or_out_of_order(
    tmp_path: pathlib.Path,
) -> None:
    with drill(tmp_path, "Even out brokers") as run:
        run.name_server()
        run.broker("broker-a")
        run.broker("broker-b")
        for topic in TOPICS:
            run.shell.ok("topic", "create", topic, "--queues", "4", "-b", "broker-a")
        run.shell.ok("topic", "update", "Steps", "--order", "-b", "broker-a")
        clients = Clients(run.namesrv)
        clients.thread.start()
        try:
            until(lambda: len(clients.got["Steps"]) > 50, lambda: f"nothing comes: {clients.failures[-3:]}")
            state = tmp_path / "moves.json"
            moves = [
                {
                    "topic": topic,
                    "source": "broker-a",
                    "goal": "broker-b",
                    "messages": 9,
                    "state": "planned",
                    "note": "",
                }
                for topic in TOPICS
            ]
            run.rmq("cluster", "balance", "--dry-run")
            state.write_text(json.dumps({"version": 1, "moves": moves}))
            command = [sys.executable, "-m", "rmq", "cluster", "balance", "--state", str(state), "--yes"]
            child = subprocess.Popen([*command, "-n", run.namesrv], stdout=subprocess.DEVNULL)
            until(
                lambda: [one["state"] for one in json.loads(state.read_text())["moves"]] == ["moving"] * 2,
                state.read_text,
            )
            before = len(clients.sent["Steps"])
            until(lambda: len(clients.sent["Steps"]) > before + 30, lambda: f"{clients.failures[-3:]}")
            child.send_signal(signal.SIGKILL)
            child.wait()

            run.rmq("cluster", "balance", "--state", str(state), "--yes", "--delete")
            assert {one["state"] for one in json.loads(state.read_text())["moves"]} == {"done"}
            for topic in TOPICS:
                assert {row["broker"] for row in run.shell.rows("topic", "show", topic)} == {"broker-b"}
            clients.sends = False
            until(
                lambda: all(set(clients.sent[topic]) <= set(clients.got[topic]) for topic in TOPICS),
                lambda: f"missing: {[len(set(clients.sent[one]) - set(clients.got[one])) for one in TOPICS]}",
            )
        finally:
            clients.sends = clients.runs = False
            clients.thread.join(60)
        lost = sum(len(set(clients.sent[topic]) - set(clients.got[topic])) for topic in TOPICS)
        stored = sum(map(len, clients.sent.values()))
        write_figures("Even out brokers", stored, len(clients.failures), lost, clients.longest)
        assert clients.failures == []
        for key in range(KEYS):
            firsts = list(dict.fromkeys(one for one in clients.got["Steps"] if one.startswith(f"{key}-")))
            assert firsts == [f"{key}-{number}" for number in range(len(firsts))]
