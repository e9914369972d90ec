"""Plain sends: requests that the compiled engine reads into runs, and answers, without an object for each.

`PlainRun` gathers the consecutive plain sends of one client that a read has brought. The long way
(`rmq_grpc.sending`) defines what is stored and answered; everything that the engine does not know for sure
goes there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rmq_grpc.encoding import SEND_PARTS
from rmq_grpc.headers import DONE_BLOCK, HEAD_BLOCK
from rmq_grpc.messages import SYSTEM_PROPERTIES

if TYPE_CHECKING:
    from rmq.errors import RmqError
    from rmq.gateway import PlainSends
    from rmq.protocol._engine import SendRun

PARTS: Final = (HEAD_BLOCK, *SEND_PARTS, DONE_BLOCK)
ANSWER_BYTES: Final = 160
"""More bytes of data than any answer to a plain send has."""


class PlainClient:
    """The plain sends of one client. `host` is the peer's, without its port."""

    def __init__(self, sends: PlainSends, host: str) -> None:
        self._sends = sends
        self._host = host.encode()
        self._reader = sends.reader(SYSTEM_PROPERTIES)
        self._run: SendRun | None = None
        self._turn = 0

    def take(self, data: bytes, begin: int, end: int, stream_id: int, now_ms: int) -> bool:
        """Take the request in `data` from `begin` to `end`, a gRPC message behind its head, into the run;
        False if it is not plain."""
        run = self._run
        if run is None:
            run, self._turn = self._reader.begin(data), self._sends.turn
            if run is None:
                return False
        turn = self._turn + run.count
        is_taken = self._reader.take(run, begin, end, stream_id, turn, now_ms, self._host)
        if is_taken:
            self._run = run
        return is_taken

    @property
    def count(self) -> int:
        """The number of sends in the run."""
        return 0 if self._run is None else self._run.count

    def store(self) -> tuple[bytes, int] | RmqError | None:
        """Store the run, and begin another: all frames of the answers, and how much of them is data; or an
        error, if none is known to be stored; None if nothing was done."""
        run, self._run = self._run, None
        assert run is not None
        outcome = self._sends.store(run)
        if outcome is True:
            return self._reader.answers(run, PARTS)
        return None if outcome is False else outcome

    def drop(self) -> None:
        """Forget the run."""
        self._run = None

    def learn(self, topic: str) -> None:
        """Let further messages to a topic go the short way: one was stored by the long way."""
        self._sends.learn(topic)


def plain_client(sends: PlainSends | None, peer: str) -> PlainClient | None:
    """The plain sends of a client at an address; None where the server has no short way."""
    if sends is None:
        return None
    return PlainClient(sends, peer.rpartition(":")[0])
