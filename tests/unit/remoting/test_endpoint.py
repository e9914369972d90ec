"""Responses that no call waits for: handed to an endpoint that wants them."""

from __future__ import annotations

import trio

from rmq.protocol.command import Command
from rmq.protocol.frames import Decoder, encode
from rmq.remoting import Connection
from rmq.remoting.endpoint import Endpoint
from rmq.testing import MemoryNetwork

ASK = 4242


class Asking(Endpoint):
    """Answers nothing, asks back for each request by `notify`, and keeps what `answered` brings."""

    def __init__(self) -> None:
        self.asked: list[Command] = []
        self.answers: list[tuple[int, bytes]] = []

    def handle(self, requests: list[Command], connection: Connection) -> None:
        for request in requests:
            self.asked.append(Command.request(ASK, None, request.body))
            connection.notify(self.asked[-1])

    def on_response(self, response: Command, connection: Connection) -> None:
        self.answers.append((response.opaque, response.body))

    def on_close(self, connection: Connection) -> None: ...


async def test_an_endpoint_gets_the_responses_to_its_notices(autojump_clock: trio.abc.Clock) -> None:
    network = MemoryNetwork(1)
    listener = await network.listen("server:1")
    endpoint = Asking()
    async with trio.open_nursery() as nursery:
        stream = await network.dial("server:1")
        connection = Connection(await listener.accept(), endpoint)
        nursery.start_soon(connection.run)
        await stream.send_all(encode(Command.request(1, None, b"hello")))
        decoder = Decoder()
        commands: list[Command] = []
        while not commands:
            commands = decoder.feed(await stream.receive_some(1000))
        (asked,) = commands
        await stream.send_all(encode(asked.reply(body=b"well")))
        await stream.aclose()
    assert endpoint.answers == [(endpoint.asked[0].opaque, b"well")]
