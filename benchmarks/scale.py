"""Our broker with a lot of everything: queues, connections, backlog, cold reads, held pulls.

    python -m benchmarks.scale [--messages 1000000] [--log-gib 12] [--folder FOLDER]

One broker on core 1 with its defaults (ASYNC_FLUSH), the load on core 0. Each row tells what the broker's
process needs, user and system time, and how long it takes. FOLDER must have room for two bytes for each byte
of the backlog, and be on the disk that is meant.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import platform
import selectors
import socket
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from statistics import median

from benchmarks.peers.servers import CACHE, Server, rmq
from rmq.protocol.bodies import ConsumerData, HeartbeatData, SubscriptionData
from rmq.protocol.codes import PULL_SUSPEND, RequestCode
from rmq.protocol.command import Command
from rmq.protocol.frames import Decoder, encode
from rmq.protocol.headers import (
    CreateTopicRequestHeader,
    PullMessageRequestHeader,
    SendMessageRequestHeader,
)
from rmq.protocol.record import encode_batch

PORT = 27_300
BODY = os.urandom(512).hex().encode()
UNIQUE = "UNIQ_KEY\x017F0000010B2C18B4AAC2000000000000\x02"
SUBSCRIPTION = 4  # the bit of a pull's sysFlag which says that the expression comes with it
MANY_QUEUES, TOPIC_QUEUES = 10_000, 16
CONNECTIONS = 1000
CONSUMERS, MEMBERS, QUEUES_EACH = 2000, 10, 5
LARGE, LARGE_BYTES = 40, (4 << 20) - 65_536  # the limit is that of the whole message
HELD, HELD_CONNECTIONS = 10_000, 100
BATCH = 100
ANY_NUMBER = {"maxNewConnectionsPerAddress": "0"}  # a thousand of one address come within a second


class Link:
    """A connection that asks and reads."""

    def __init__(self, port: int = PORT) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), 30)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock.settimeout(120)
        self._decoder = Decoder()
        self._found: list[Command] = []

    def read(self) -> list[Command]:
        """What has come, at least one command."""
        while not self._found:
            data = self.sock.recv(1 << 20)
            if not data:
                raise ConnectionError("the broker hung up")
            self._found += self._decoder.feed(data)
        found, self._found = self._found, []
        return found

    def ask(self, request: Command) -> Command:
        """One request, one answer."""
        self.sock.sendall(encode(request))
        (answer,) = self.read()
        return answer

    def ask_many(self, requests: Iterable[bytes], window: int) -> int:
        """Keep a window of requests in flight; how many were answered well. Raises ValueError otherwise."""
        flying = done = 0
        for request in requests:
            self.sock.sendall(request)
            flying += 1
            while flying >= window:
                done, flying = self._taken(done, flying)
        while flying:
            done, flying = self._taken(done, flying)
        return done

    def _taken(self, done: int, flying: int) -> tuple[int, int]:
        found = self.read()
        for answer in found:
            if answer.code:
                raise ValueError(f"{answer.code}: {answer.remark}")
        return done + len(found), flying - len(found)


def make_topic(link: Link, topic: str, queues: int) -> None:
    header = CreateTopicRequestHeader(topic, "TBW102", queues, queues, 6, "SINGLE_TAG")
    answer = link.ask(Command.request(RequestCode.UPDATE_AND_CREATE_TOPIC, header))
    assert answer.code == 0, answer.remark


def send(topic: str, queue: int, body: bytes = BODY, batch: bool = False, properties: str = UNIQUE) -> bytes:
    code = RequestCode.SEND_BATCH_MESSAGE if batch else RequestCode.SEND_MESSAGE_V2
    now = int(time.time() * 1000)
    header = SendMessageRequestHeader(
        "scale", topic, "TBW102", 4, queue, 0, now, 0, properties, 0, batch=batch
    )
    return encode(Command.request(code, header, body))


def pull(
    topic: str, queue: int, offset: int, tags: str = "*", suspend_ms: int = 0, most: int = 256
) -> Command:
    flags = SUBSCRIPTION | (PULL_SUSPEND if suspend_ms else 0)
    header = PullMessageRequestHeader(
        "scale", topic, queue, offset, most, flags, 0, suspend_ms, tags, 1, "TAG"
    )
    return Command.request(RequestCode.PULL_MESSAGE, header)


class Measured:
    """What the broker needed within a block."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def __enter__(self) -> Measured:
        self.cpu, self.wall = self._server.cpu_seconds(), time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.cpu, self.wall = self._server.cpu_seconds() - self.cpu, time.perf_counter() - self.wall

    def told(self, count: int) -> str:
        return f"{self.cpu / count * 1e6:.1f} µs of CPU each, {count / self.wall:,.0f} a second"


def rss_mib(server: Server) -> float:
    status = pathlib.Path(f"/proc/{server.process.pid}/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1]) / 1024


# --- the rows ---


def many_queues(server: Server) -> Iterator[tuple[str, str]]:
    link, topics = Link(), MANY_QUEUES // TOPIC_QUEUES
    with Measured(server) as few:
        link.ask_many((send("Few", number % 4) for number in range(20_000)), 256)
    before = rss_mib(server)
    for number in range(topics):
        make_topic(link, f"Many{number}", TOPIC_QUEUES)
    requests = [send(f"Many{topic}", queue) for queue in range(TOPIC_QUEUES) for topic in range(topics)]
    with Measured(server) as first:
        link.ask_many(requests, 256)
    with Measured(server) as again:
        link.ask_many(requests * 2, 256)
    yield "sends to 4 queues, 256 in flight", few.told(20_000)
    yield "first message of each of 10,000 queues (625 topics)", first.told(len(requests))
    yield "sends to 10,000 queues in turn", again.told(2 * len(requests))
    yield "memory that 10,000 queues take", f"{rss_mib(server) - before:.0f} MiB"


def many_connections(server: Server) -> Iterator[tuple[str, str]]:
    before = rss_mib(server)
    links = [Link() for _ in range(CONNECTIONS)]
    waiting = selectors.DefaultSelector()
    request = send("Few", 0)
    for link in links:
        waiting.register(link.sock, selectors.EVENT_READ)
        link.sock.sendall(request)
    count, until = 0, time.perf_counter() + 3.0
    with Measured(server) as taken:
        while time.perf_counter() < until:
            for key, _ in waiting.select(1):
                sock = key.fileobj
                assert isinstance(sock, socket.socket)
                data = sock.recv(4096)
                if b'"code":0' not in data:
                    raise ValueError(f"a send was refused: {data!r}")
                sock.sendall(request)
                count += 1
    yield "1,000 connections, each with one send in flight", taken.told(count)
    yield "memory that 1,000 connections take", f"{rss_mib(server) - before:.0f} MiB"
    for link in links:
        link.sock.close()


def backlog(server: Server, messages: int) -> Iterator[tuple[str, str]]:
    link = Link()
    make_topic(link, "Backlog", 4)
    parts = [(0, BODY, UNIQUE + f"TAGS\x01{'hit' if number == 0 else 'miss'}\x02") for number in range(BATCH)]
    body = encode_batch(parts)
    requests = [send("Backlog", queue, body, batch=True) for queue in range(4)]
    with Measured(server) as filled:
        link.ask_many((requests[number % 4] for number in range(messages // BATCH)), 4)
    yield f"backlog of {messages:,} x 1 KB, sent in batches of {BATCH}", filled.told(messages)
    for tags, words in (("*", "without a filter"), ("hit", "with a tag that one of 100 has")):
        with Measured(server) as read:
            passed = sum(drain(link, queue, tags) for queue in range(4))
        assert passed == messages, passed
        yield f"the backlog pulled {words}, for each message of it", read.told(messages)


def drain(link: Link, queue: int, tags: str) -> int:
    """Pull a queue to its end; returns the offset there."""
    offset = 0
    while True:
        answer = link.ask(pull("Backlog", queue, offset, tags))
        if answer.ext is None or "nextBeginOffset" not in answer.ext:
            raise ValueError(f"{answer.code}: {answer.remark}")
        following = int(answer.ext["nextBeginOffset"])
        if following >= int(answer.ext["maxOffset"]):
            return following
        assert following > offset
        offset = following


def cold_reads(server: Server, folder: str) -> Iterator[tuple[str, str]]:
    """Sends one at a time, alone and while another connection reads what is not in memory."""
    writer, reader = Link(), Link()
    alone = latencies(writer, 1.5)
    for path in pathlib.Path(folder).rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fdatasync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(Exception):
            for queue in range(4):
                drain(reader, queue, "*")
        os._exit(0)
    beside = latencies(writer, 3.0, lambda: os.waitpid(pid, os.WNOHANG) == (0, 0))
    for words, found in (("alone", alone), ("beside a reader of the cold backlog", beside)):
        found.sort()
        p99 = found[int(len(found) * 0.99)]
        yield f"send one at a time, {words}", f"p50 {median(found):.0f} µs, p99 {p99:.0f} µs"
    with contextlib.suppress(ChildProcessError, ProcessLookupError):  # it is at its end already
        os.kill(pid, 9)
        os.waitpid(pid, 0)


def latencies(link: Link, seconds: float, goes_on: object = None) -> list[float]:
    request, found, until = send("Few", 0), [], time.perf_counter() + seconds
    while time.perf_counter() < until and (goes_on is None or goes_on()):  # type: ignore[operator]
        begin = time.perf_counter()
        link.ask_many([request], 1)
        found.append((time.perf_counter() - begin) * 1e6)
    return found


def parked_pulls(server: Server) -> Iterator[tuple[str, str]]:
    main = Link()
    for number in range(HELD_CONNECTIONS):
        make_topic(main, f"Held{number}", 1)
    before = rss_mib(server)
    links = [Link() for _ in range(HELD_CONNECTIONS)]
    each = HELD // HELD_CONNECTIONS
    for number, link in enumerate(links):
        link.sock.sendall(encode(pull(f"Held{number}", 0, 0, suspend_ms=15_000)) * each)
    time.sleep(1.5)
    with Measured(server) as idle:
        time.sleep(2.0)
    yield "10,000 held pulls of 100 topics", f"{rss_mib(server) - before:.0f} MiB"
    yield "the same, while nothing comes", f"{idle.cpu / idle.wall * 100:.1f} % of a core"
    with Measured(server) as woken:
        for number in range(HELD_CONNECTIONS):
            main.sock.sendall(send(f"Held{number}", 0))
        for link in links:
            count = 0
            while count < each:
                count += len(link.read())
    yield "all of them answered after one message for each topic", woken.told(HELD)


def many_consumers(server: Server) -> Iterator[tuple[str, str]]:
    """Consumers as they are: a connection each, a heartbeat, a held pull for each of their queues."""
    main = Link()
    for number in range(CONSUMERS // MEMBERS):
        make_topic(main, f"Shared{number}", MEMBERS * QUEUES_EACH)
    before = rss_mib(server)
    links = [Link() for _ in range(CONSUMERS)]
    with Measured(server) as come:
        for number, link in enumerate(links):
            topic = f"Shared{number // MEMBERS}"
            group = ConsumerData(
                f"group-{number // MEMBERS}",
                "CONSUME_PASSIVELY",
                "CLUSTERING",
                "CONSUME_FROM_LAST_OFFSET",
                [SubscriptionData(topic, "*")],
            )
            body = HeartbeatData(f"client-{number}", [], [group]).to_json()
            link.sock.sendall(encode(Command.request(RequestCode.HEART_BEAT, body=body)))
            pull_queues(link, number, 0)
        time.sleep(5.0)  # their groups are saved and registered
    pulls = CONSUMERS * QUEUES_EACH
    yield (
        f"{CONSUMERS:,} consumers of {CONSUMERS // MEMBERS} groups come",
        f"{come.cpu / CONSUMERS * 1e6:.0f} µs of CPU each",
    )
    yield f"their connections, groups and {pulls:,} held pulls", f"{rss_mib(server) - before:.0f} MiB"
    with Measured(server) as idle:
        time.sleep(3.0)
    yield "the same, while nothing comes", f"{idle.cpu / idle.wall * 100:.1f} % of a core"
    yield (
        "a message for each of these pulls, the first of its queue",
        handed_out(server, main, links).told(pulls),
    )
    for number, link in enumerate(links):
        pull_queues(link, number, 1)
    time.sleep(2.0)
    yield "a message for each of these pulls, the second", handed_out(server, main, links).told(pulls)
    for link in links:
        link.sock.close()


def pull_queues(link: Link, number: int, offset: int) -> None:
    """Have the pulls of a consumer's queues held."""
    first = number % MEMBERS * QUEUES_EACH
    for queue in range(first, first + QUEUES_EACH):
        link.sock.sendall(encode(pull(f"Shared{number // MEMBERS}", queue, offset, suspend_ms=60_000)))


def handed_out(server: Server, main: Link, links: Sequence[Link]) -> Measured:
    """The cost of a message for each held pull of many consumers, 64 sends in flight."""
    with Measured(server) as cost:
        for number in range(CONSUMERS // MEMBERS):
            queues = range(MEMBERS * QUEUES_EACH)
            main.ask_many((send(f"Shared{number}", queue) for queue in queues), 64)
        for link in links:
            given = 0
            while given < QUEUES_EACH:
                given += sum(answer.code == 0 and bool(answer.body) for answer in link.read())
    return cost


def large_messages(server: Server) -> Iterator[tuple[str, str]]:
    make_topic(Link(), "Large", 4)
    request = send("Large", 0, bytes(LARGE_BYTES))
    before, most = rss_mib(server), 0.0
    links = [Link() for _ in range(LARGE)]
    left = dict.fromkeys(links, memoryview(request))
    with Measured(server) as taken:
        while left:  # all at once, a piece of each in turn
            for link in list(left):
                left[link] = left[link][link.sock.send(left[link][: 1 << 18]) :]
                if not left[link]:
                    del left[link]
            most = max(most, rss_mib(server) - before)
        answers = [answer for link in links for answer in link.read()]
    if len(answers) != LARGE or any(answer.code for answer in answers):
        raise ValueError(f"{len(answers)} answers, {[answer.code for answer in answers]}")
    yield f"{LARGE} messages of 4 MiB at once", taken.told(LARGE)
    yield (
        "memory that they take while they come, and a second after",
        (f"{most:.0f} MiB, {settled_mib(server) - before:.0f} MiB"),
    )
    for link in links:
        link.sock.close()


def settled_mib(server: Server) -> float:
    time.sleep(1.0)
    return rss_mib(server)


def long_log(kind: str, folder: str, gib: int) -> Iterator[tuple[str, str]]:
    """How long a broker with so much log needs until it answers, stopped cleanly or killed before."""
    words = "kill", "clean stop"
    with rmq(kind, folder, PORT, CACHE, ANY_NUMBER) as server:
        link = Link()
        make_topic(link, "Long", 4)
        request, count = send("Long", 0, os.urandom(1 << 19)), gib << 11
        with Measured(server) as filled:
            link.ask_many((request for _ in range(count)), 4)
        yield f"{gib} GiB of log in messages of 512 KiB, sent by one", filled.told(count)
        yield f"memory of a broker that took {gib} GiB", f"{rss_mib(server):.0f} MiB"
        server.process.kill()
        server.process.wait()
    for word in words:
        begin = time.perf_counter()
        with rmq(kind, folder, PORT, CACHE, ANY_NUMBER) as server:
            Link().ask(Command.request(RequestCode.GET_BROKER_RUNTIME_INFO))
            took = time.perf_counter() - begin
            yield (
                f"start with {gib} GiB of log after a {word}",
                (f"{took:.1f} s, {server.cpu_seconds():.1f} s of CPU, {rss_mib(server):.0f} MiB"),
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--log-gib", type=int, default=0, help="also how a broker with so much log starts")
    parser.add_argument("--folder", help="where the store is made; the system's for temporary files if none")
    parser.add_argument("--kind", default="rmq", choices=["rmq", "rmq, pure"])
    options = parser.parse_args()
    os.sched_setaffinity(0, {0})
    loads = [os.getloadavg()[0]]
    rows: list[tuple[str, str]] = []
    with (
        tempfile.TemporaryDirectory(prefix="rmq-scale-", dir=options.folder) as folder,
        rmq(options.kind, folder, PORT, CACHE, ANY_NUMBER) as server,
    ):
        rows += many_connections(server)
        rows += backlog(server, options.messages)
        rows += cold_reads(server, folder)
        rows += parked_pulls(server)
        rows += many_queues(server)
        rows += many_consumers(server)
        rows += large_messages(server)
    if options.log_gib:
        with tempfile.TemporaryDirectory(prefix="rmq-scale-", dir=options.folder) as folder:
            rows += long_log(options.kind, folder, options.log_gib)
    loads.append(os.getloadavg()[0])
    today, python = time.strftime("%Y-%m-%d"), platform.python_version()
    print(f"Taken {today}: Python {python}, load {min(loads):.1f} to {max(loads):.1f}.\n")
    print("| what | |\n|---|---|")
    for what, told in rows:
        print(f"| {what} | {told} |")


if __name__ == "__main__":
    main()
