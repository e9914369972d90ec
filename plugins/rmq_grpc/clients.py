"""Clients of a connection: the state of each, and the questions that the server puts to them.

Questions go over the Telemetry call of the client: the end of an orphaned transaction, the stacks of the
client's threads, and the result of a message that it consumes now. The last two have a nonce, which the
answer repeats. A client that does not answer costs that question alone: the asker has a time-out.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, Final

import anyio
from attrs import define, field

from rmq.errors import ResponseError, for_code
from rmq.protocol.bodies import ConsumeMessageDirectlyResult
from rmq.protocol.codes import ResponseCode
from rmq_grpc import schema
from rmq_grpc.encoding import to_client
from rmq_grpc.statuses import Code, status

if TYPE_CHECKING:
    from rmq.doors import Question
    from rmq.gateway import Gateway
    from rmq.plugin import DoorHost, OpenTransaction
    from rmq_grpc.calls import Call
    from rmq_grpc.plain import PlainClient

QUESTIONS_MAX: Final = 16
"""Questions of administrators that a client has not answered."""
QUESTION_SECONDS: Final = 10.0
"""Seconds after which an unanswered question makes room for another."""

TelemetryCommand: Final = schema.message("TelemetryCommand")


@define
class Lease:
    """The lease of a message, renewed until the acknowledgement."""

    group: str
    topic: str
    handle: str
    renew_at: float
    until: float


@define
class _Asked:
    """A question that waits for its answer."""

    question: Question
    since: float


@define
class Client:
    """A client of the connection: its host and gateway, its plain sends, its Telemetry call, its group, the
    topics that the client sends to, and the last signature that was checked."""

    client_id: str
    host: DoorHost
    gateway: Gateway
    heard_at: float
    plain: PlainClient | None = None
    telemetry: Call | None = None
    group: str = ""
    topics: tuple[str, ...] = ()
    signature: str = ""
    leases: dict[str, Lease] = field(factory=dict)  # by the handle that the client has
    _asked: dict[str, _Asked] = field(factory=dict)

    def check(self, transaction: OpenTransaction) -> None:
        """Ask the producer for the end of a transaction."""
        command = TelemetryCommand(status=status())
        recover = command.recover_orphaned_transaction_command
        recover.transaction_id = transaction.transaction_id
        recover.message.CopyFrom(to_client(transaction.message))
        if self.telemetry is not None:
            self.telemetry.send(command.SerializeToString())

    def ask(self, question: Question) -> None:
        """Put an administrator's question to the client. Raises ResponseError when it cannot be asked."""
        now = anyio.current_time()
        if self.telemetry is None or self.telemetry.is_over:
            raise for_code(ResponseCode.SYSTEM_ERROR, f"client {self.client_id} has no Telemetry call open")
        for nonce in [nonce for nonce, one in self._asked.items() if now - one.since > QUESTION_SECONDS]:
            del self._asked[nonce]
        if len(self._asked) >= QUESTIONS_MAX:
            remark = f"client {self.client_id} has {QUESTIONS_MAX} questions to answer already"
            raise for_code(ResponseCode.SYSTEM_BUSY, remark)
        nonce = secrets.token_hex(16)
        command = TelemetryCommand(status=status())
        if question.message is None:
            command.print_thread_stack_trace_command.nonce = nonce
        else:
            command.verify_message_command.nonce = nonce
            command.verify_message_command.message.CopyFrom(to_client(question.message))
        self._asked[nonce] = _Asked(question, now)
        self.telemetry.send(command.SerializeToString())

    def answered(self, command: Any) -> None:
        """Take the client's response to a question; a response without a waiting question is dropped."""
        kind = command.WhichOneof("command")
        asked = self._asked.pop(getattr(command, kind).nonce, None)
        if asked is None:
            return
        has_status = command.HasField("status")
        code, text = command.status.code, command.status.message
        if asked.question.message is None:
            if kind == "thread_stack_trace" and (not has_status or code == Code["OK"]):
                asked.question.answer(command.thread_stack_trace.thread_stack_trace)
            else:
                asked.question.answer(_refusal(command.status))
            return
        unsupported = (Code["VERIFY_FIFO_MESSAGE_UNSUPPORTED"], Code["NOT_IMPLEMENTED"], Code["UNSUPPORTED"])
        if kind != "verify_message_result" or code in unsupported:
            asked.question.answer(_refusal(command.status))
            return
        result = "CR_SUCCESS" if not has_status or code == Code["OK"] else "CR_LATER"
        spent_ms = round((anyio.current_time() - asked.since) * 1000)
        asked.question.answer(ConsumeMessageDirectlyResult(False, True, result, text or None, spent_ms))


def _refusal(given: Any) -> ResponseError:
    words = {number: word for word, number in Code.items()}
    text = f"the client answered {words.get(given.code, given.code)}: {given.message}"
    return for_code(ResponseCode.SYSTEM_ERROR, text)
