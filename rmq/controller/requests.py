"""Requests to a controller from brokers, operators and other controllers, and their responses.

Bodies are JSON; messages between controllers have the format of `raft`. A controller that does not lead
answers CONTROLLER_NOT_LEADER. The field `leader` of this response holds the leader's address, if the
controller knows the leader.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from rmq.controller.consensus.raft import NotLeader
from rmq.controller.controller import AddMember, Answer, Controller, ElectRequest, RemoveMember, Request
from rmq.controller.elections import Elections
from rmq.controller.heartbeat import Heartbeat
from rmq.controller.sets import NOBODY, Adopt, AlterInSync, Register, Remove
from rmq.errors import RemoteProtocolError
from rmq.metrics import Metric, single
from rmq.protocol.auth.server_auth import PROOF
from rmq.protocol.codes import (
    CONTROLLER_ASK,
    CONTROLLER_MESSAGE,
    CONTROLLER_NOT_LEADER,
    CONTROLLER_OPERATE,
    CONTROLLER_STATUS,
    ResponseCode,
)
from rmq.protocol.command import Command
from rmq.remoting.connection import Connection
from rmq.remoting.transports.certificate import ServerCertificate

log = logging.getLogger("rmq.controller")

Handler = Callable[[Command, Connection, int], Command | None]

SIGNED_CODES: Final = frozenset((CONTROLLER_MESSAGE, CONTROLLER_ASK))
"""Requests that only servers of the cluster send: with a cluster secret they must be signed with it."""
LEADER: Final = "leader"


def _lives(elections: Elections, name: str, number: int, now: float) -> bool | None:
    """True if a replica lives; None when this controller has led for too short a time to know."""
    if elections.lives(name, number, now):
        return True
    return None if elections.may_live(name, number, now) else False


def needs_secret(request: Command, *, asks_accounts: bool) -> bool:
    """True if a request must be signed with the cluster secret, if the controllers have a secret: every
    request of a server, and an operator's request, unless accounts are required and the request carries no
    such signature."""
    if request.code in SIGNED_CODES:
        return True
    return request.code == CONTROLLER_OPERATE and (PROOF in request.ext or not asks_accounts)


_OF_BROKERS: Final[Mapping[str, type[Any]]] = {
    "Heartbeat": Heartbeat,
    "Register": Register,
    "AlterInSync": AlterInSync,
    "Adopt": Adopt,
}
_OF_OPERATORS: Final[Mapping[str, type[Any]]] = {
    "Want": ElectRequest,
    "Remove": Remove,
    "Add": AddMember,
    "Drop": RemoveMember,
}
"""Kind on the wire -> request. The kinds stay as released versions send them."""
_KINDS: Final = {kind: name for name, kind in {**_OF_BROKERS, **_OF_OPERATORS}.items()}


# ---- requests of the sender ----


def request_of(question: Request) -> Command:
    """A question as a request."""
    name = _KINDS[type(question)]
    code = CONTROLLER_ASK if name in _OF_BROKERS else CONTROLLER_OPERATE
    return Command.request(code, body=msgspec.json.encode({"kind": name, "question": question}))


def answer_of(response: Command) -> Answer:
    """Decode the answer in a response. Raises NotLeader, and RemoteProtocolError for any other response."""
    if response.code == CONTROLLER_NOT_LEADER:
        raise NotLeader(response.ext.get(LEADER, ""))
    if response.code != ResponseCode.SUCCESS:
        raise RemoteProtocolError(f"the controller answers {response.code}: {response.remark}")
    try:
        return msgspec.json.decode(response.body, type=Answer)
    except msgspec.MsgspecError as error:
        raise RemoteProtocolError(f"the controller's answer cannot be read: {error}") from None


# ---- answers of the controller ----


class ControllerRequests:
    """Request handlers of the controller that is started. Without a started controller, every answer is
    NotLeader.

    `clock` is the clock of leases. `on_change` is called when messages may be ready to send, and when the
    controller must stop; `failure` then holds the reason.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        on_change: Callable[[], None] = lambda: None,
        *,
        certificate: ServerCertificate | None = None,
    ) -> None:
        self.clock = clock
        self.certificate = certificate or ServerCertificate()
        self._on_change = on_change
        self.controller: Controller | None = None
        self.failure: Exception | None = None

    def watch(self, on_change: Callable[[], None]) -> None:
        """Call `on_change` from now on, in place of the callback before."""
        self._on_change = on_change

    def start(self, controller: Controller) -> None:
        """Answer requests by `controller` from now on."""
        self.controller, self.failure = controller, None

    def stop(self) -> None:
        """Stop answering. Requests that wait are answered with NotLeader."""
        controller, self.controller = self.controller, None
        if controller is not None:
            controller.give_up()

    def step(self) -> float:
        """Do the due work and return the time of the next call. Raises the error for which the controller
        must stop."""
        if self.failure is not None:
            raise self.failure
        assert self.controller is not None, "the controller is not started"
        return self.controller.step(self.clock())

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler."""
        return {
            CONTROLLER_MESSAGE: self._on_message,
            CONTROLLER_ASK: self._on_ask,
            CONTROLLER_STATUS: self._on_status,
            CONTROLLER_OPERATE: self._on_operate,
        }

    def _on_message(self, request: Command, connection: Connection, now_ms: int) -> Command:
        controller = self.controller
        if controller is not None:
            now = self.clock()

            def receive() -> None:
                controller.raft.receive(request.body, now)
                controller.advance(now)

            self._guarded(receive)
        return request.reply()

    def _on_ask(self, request: Command, connection: Connection, now_ms: int) -> None:
        self._ask(request, connection, _OF_BROKERS)

    def _on_operate(self, request: Command, connection: Connection, now_ms: int) -> None:
        self._ask(request, connection, _OF_OPERATORS)

    def _ask(self, request: Command, connection: Connection, kinds: Mapping[str, type[Any]]) -> None:
        question = _question(request.body, kinds)

        def reply(answer: Answer | NotLeader) -> None:
            if not request.is_oneway:
                connection.reply(_response(request, answer))

        controller = self.controller
        if controller is None:
            reply(NotLeader(""))
        else:
            self._guarded(lambda: controller.submit(question, reply, self.clock()))

    def _on_status(self, request: Command, connection: Connection, now_ms: int) -> Command:
        return request.reply(body=msgspec.json.encode(self.status()))

    def _guarded(self, work: Callable[[], None]) -> None:
        """Run `work`, which may write to the journal. Any error except the sender's stops this controller;
        its owner starts the controller again."""
        try:
            work()
        except RemoteProtocolError:
            raise
        except NotLeader:
            raise RemoteProtocolError("another controller leads: ask again") from None
        except Exception as error:
            # Memory and disk may differ now: no request is answered from either.
            self.failure = error
            self.stop()
            raise
        finally:
            self._on_change()

    def status(self) -> dict[str, Any]:
        """State of this controller. Only with `leading` true is the state sure to be complete."""
        controller = self.controller
        if controller is None:
            end = self.certificate.end_text
            return {"leading": False, "role": "stopped", "sets": [], "certificateEnd": end}
        raft, now = controller.raft, self.clock()
        return {
            "self": raft.me,
            "role": raft.role.value,
            "leading": raft.is_leading(now),
            "leader": raft.leader_address,
            "term": raft.term,
            "committed": raft.commit,
            "elections": raft.elections,
            "members": raft.members,
            "joining": raft.learners,
            "forgetful": sorted(raft.lost_journal),
            "stopped": raft.stopped,
            "blank": raft.is_blank,
            "leaseMs": round(controller.elections.setting_s * 1000),
            "leaseMsAgreed": controller.sets.lease_ms,
            "certificateEnd": self.certificate.end_text,
            "sets": [self._set_status(controller, name, now) for name in sorted(controller.sets.sets)],
        }

    def _set_status(self, controller: Controller, name: str, now: float) -> dict[str, Any]:
        one, is_leading = controller.sets.sets[name], controller.raft.is_leading(now)
        return {
            "cluster": one.cluster,
            "name": name,
            "epoch": one.epoch,
            "version": one.version,
            "master": one.master,
            "inSync": list(one.in_sync),
            "replicas": [
                {
                    "number": number,
                    "identity": replica.identity,
                    "address": replica.address,
                    "haAddress": replica.ha_address,
                    "lives": _lives(controller.elections, name, number, now) if is_leading else None,
                    "reach": controller.elections.reach(name, number) if is_leading else None,
                }
                for number, replica in sorted(one.replicas.items())
            ],
        }

    def metrics(self) -> list[Metric]:
        """Metrics: whether this controller leads, and the sizes of its table."""
        controller, now = self.controller, self.clock()
        is_leading = controller is not None and controller.raft.is_leading(now)
        sets = list(controller.sets.sets.values()) if controller is not None else []
        term = controller.raft.term if controller is not None else 0
        elected, unclean = (
            (0, 0) if controller is None else (controller.elected, controller.elected_uncleanly)
        )
        stopped = "1 if its log has an entry that this version cannot read; it then applies no entries"
        has_stopped = controller is not None and bool(controller.raft.stopped)
        held = "Masters elected while it led; unclean: masters that lacked messages"
        masterless = sum(not one.master for one in sets)
        if controller is not None and is_leading:  # only the leader hears which replicas live
            lives = controller.elections.may_live
            masterless += sum(one.master != NOBODY and not lives(one.name, one.master, now) for one in sets)
        return [
            single("controller_leading", "gauge", "Whether this controller leads", int(is_leading)),
            single("controller_term", "gauge", "Its current term", term),
            single("controller_stopped", "gauge", stopped, int(has_stopped)),
            single("controller_sets", "gauge", "Broker sets in its table", len(sets)),
            single("controller_sets_without_master", "gauge", "Broker sets without a master", masterless),
            Metric(
                "controller_elections",
                "counter",
                held,
                [(("clean",), elected - unclean), (("unclean",), unclean)],
                ("kind",),
            ),
        ]


def _question(body: bytes, kinds: Mapping[str, type[Any]]) -> Request:
    try:
        given = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        kind = kinds[msgspec.json.decode(given["kind"], type=str)]
        question: Request = msgspec.json.decode(given["question"], type=kind)
    except (msgspec.MsgspecError, KeyError) as error:
        raise RemoteProtocolError(f"no question to a controller: {error}") from None
    return question


def _response(request: Command, answer: Answer | NotLeader) -> Command:
    if isinstance(answer, NotLeader):
        response = request.reply(CONTROLLER_NOT_LEADER, str(answer))
        return response.with_ext({LEADER: answer.leader})
    return request.reply(body=msgspec.json.encode(answer))
