"""Controllers: their state, the broker sets with master and in-sync replicas, elections, hand-overs and
membership.

    async with opened(["c1:9878", "c2:9878", "c3:9878"]) as controllers:
        print((await controllers.leading()).sets)
        await controllers.hand_over("broker-a")

Name servers may be controllers too. RocketMQ 5.3's own controllers speak another protocol and are not asked.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import anyio
from attrs import evolve, field, frozen

from rmq.config import parse_addresses
from rmq.controller.consensus.raft import NotLeader
from rmq.controller.controller import AddMember, Answer, ElectRequest, RemoveMember, Request
from rmq.controller.requests import answer_of, request_of
from rmq.controller.sets import Remove
from rmq.errors import (
    NETWORK_ERRORS,
    ConnectFailed,
    ConnectionLost,
    NoPermission,
    RemoteProtocolError,
    RequestCodeNotSupported,
    RmqError,
    for_code,
)
from rmq.protocol.codes import CONTROLLER_NOT_LEADER, CONTROLLER_STATUS
from rmq.protocol.command import Command
from rmq.remoting.address import with_scheme

if TYPE_CHECKING:
    from rmq.client.admin import Admin
    from rmq.protocol.auth.signature import Credentials
    from rmq.remoting.network import Network
    from rmq.remoting.transports.tls import TlsConfig

Call = Callable[[str, Command], Awaitable[Command]]
"""Sends a request to an address and returns the response; raises the errors of the network."""
Sign = Callable[[Command], Command]

SECONDS: Final = 5.0
"""Time-out of a request to a controller, in seconds."""
SCAN_SECONDS: Final = 0.1
"""Seconds between two queries for the master or the members."""
MEMBER_SECONDS: Final = 30.0
ELECTION_SECONDS: Final = 15.0
"""Seconds that a change waits for a leader while a majority of the controllers answers."""
TLS_HINT: Final = "if it uses TLS, write tls:// before its address, or give --tls"
REFUSES: Final = "refuses this account: "
"""Begin of the error of a server that refuses an account which others accept."""
NO_CONTROLLER: Final = "it is not a controller (setting controllers): name the controllers with --controllers"


class NoLeadingController(RmqError):
    """The error when no controller leads, so that no master is elected."""

    retriable = True
    hint = "start a majority of the controllers; `rmq controller status --all` shows each"


@frozen
class Replica:
    """A replica of a broker set. `lives` is true if it was heard within a lease, `reach` is the end of its
    log on the disk; both are None when only the leader knows them."""

    number: int
    address: str
    lives: bool | None
    reach: int | None


@frozen
class ControlledSet:
    """A broker set under the controllers. `master` is the number of the master, 0 for none, `in_sync` the
    numbers of the replicas in sync.
    """

    cluster: str
    name: str
    epoch: int
    master: int
    in_sync: tuple[int, ...]
    replicas: tuple[Replica, ...]

    @property
    def stranded(self) -> list[Replica]:
        """Replicas that live and are not in sync, the replica with the longest log first, while no replica in
        sync lives, so that none is elected. Empty otherwise."""
        if any(one.lives or one.lives is None for one in self.replicas if one.number in self.in_sync):
            return []
        return sorted((one for one in self.replicas if one.lives), key=lambda one: -(one.reach or 0))

    @property
    def candidates(self) -> list[Replica]:
        """Replicas that may become master: in sync and alive, the one with the longest log first."""
        ready = [
            one
            for one in self.replicas
            if one.number in self.in_sync and one.number != self.master and one.lives
        ]
        return sorted(ready, key=lambda one: -(one.reach or 0))


@frozen
class ControllerState:
    """State of a controller, by its own report; `error` is the reason for a missing answer.

    `own_address` is its address among the `members` (name -> address), `leader` the name of the leader,
    `stopped` the reason why it applies nothing more. `forgetful` are members that have lost their journals,
    and `is_blank` is true if this controller has none. `elections` counts the elections it has begun.
    `lease_ms` is its setting, `agreed_lease_ms` the value in force. `certificate_end` is the end of its
    certificate in ISO 8601, empty when unknown.
    """

    address: str
    own_address: str = ""
    role: str | None = None
    is_leading: bool = False
    leader: str | None = None
    term: int | None = None
    committed: int | None = None
    members: Mapping[str, str] = field(factory=dict)
    joining: tuple[str, ...] = ()
    forgetful: tuple[str, ...] = ()
    is_blank: bool = False
    stopped: str = ""
    lease_ms: int | None = None
    agreed_lease_ms: int | None = None
    elections: int | None = None
    certificate_end: str = ""
    sets: tuple[ControlledSet, ...] = ()
    error: str = ""

    @property
    def problem(self) -> str:
        """The reason why the controller does not lead, in words; empty when it does."""
        if self.error:
            return self.error
        if self.stopped:
            return f"it has stopped, because it cannot read {self.stopped}: start a later version there"
        return "" if self.is_leading else "it does not lead"

    def broker_set(self, name: str) -> ControlledSet | None:
        """The broker set of a name."""
        return next((one for one in self.sets if one.name == name), None)


@frozen
class Outcome:
    """Result of an operation: true if it is done, and a text with the result or the reason."""

    is_done: bool
    text: str


def _unsigned(request: Command) -> Command:
    return request


class Controllers:
    """Operations on the controllers at `addresses`, by `call`; `sign` signs requests that change something,
    with the secret of the cluster's servers. The scheme of the first address with one (`tls://`) counts for
    all.

    Methods raise the errors of the network only when no controller can be reached, AccessDenied and the
    ResponseError of a refusal.
    """

    def __init__(self, addresses: Sequence[str], call: Call, sign: Sign = _unsigned) -> None:
        self._scheme = next((one.partition("://")[0] for one in addresses if "://" in one), "")
        self._given = [self._named(one) for one in addresses]
        self._call, self._sign = call, sign

    # --- reading ---

    async def states(self) -> list[ControllerState]:
        """Query the state of each controller: the given controllers, and the members that they know. Raises
        NoPermission if all of them refuse the account; a single one has a fault, such as a wrong clock."""
        refusals: list[NoPermission] = []
        states = await self._ask(self._given, refusals)
        if refusals and len(refusals) == len(states):
            raise refusals[0]
        asked = {*self._given, *(self._named(one.own_address) for one in states if one.own_address)}
        others = {other for one in states for other in (*one.members.values(), *one.joining)}
        known = {self._named(other) for other in others}
        return states + await self._ask(sorted(known - asked), refusals)

    async def leading(self) -> ControllerState:
        """The state of the controller that leads. Raises NoLeadingController, with each controller's
        answer."""
        states = await self.states()
        for one in states:
            if one.is_leading:
                return one
        raise NoLeadingController(f"no controller leads ({_each(states)})")

    async def broker_set(self, name: str) -> ControlledSet | None:
        """A broker set in the leader's table; None for an unknown name."""
        return (await self.leading()).broker_set(name)

    def _named(self, address: str) -> str:
        """An address with the scheme of all, unless the address has a scheme."""
        return with_scheme(address, self._scheme) if self._scheme else address

    async def _ask(
        self, addresses: Sequence[str], refusals: list[NoPermission] | None = None
    ) -> list[ControllerState]:
        found = []
        for address in addresses:
            try:
                response = await self._call(address, Command.request(CONTROLLER_STATUS))
                _check(response, address)
                found.append(state_of(address, _object(response.body, address)))
            except RequestCodeNotSupported:
                found.append(ControllerState(address, error=NO_CONTROLLER))
            except NoPermission as error:
                if refusals is None:
                    raise
                refusals.append(error)
                what = f"{REFUSES}{error.remark or error}"
                found.append(ControllerState(address, error=what))
            except NETWORK_ERRORS as error:
                found.append(ControllerState(address, error=_explained(address, error)))
        return found

    # --- changes ---

    async def elect(self, broker: str, number: int, *, is_unclean: bool = False) -> Outcome:
        """Make a replica in sync the next master of its set. The present master gets no further lease, and
        the replica is elected when the last lease is over. `is_unclean`: a replica that is not in sync, when
        no replica in sync lives; messages that only the latter had are lost."""
        return _outcome(
            await self._asked(ElectRequest(broker, number, is_unclean)),
            f"{broker} {number} is to be the next master; `rmq controller status` shows when it is",
        )

    async def remove(self, broker: str, number: int) -> Outcome:
        """Remove a replica for good. Removing the last replica removes the set."""
        return _outcome(await self._asked(Remove(broker, number)), f"{broker} {number} is removed")

    async def drop(self, address: str) -> Outcome:
        """Remove a controller, alive or not."""
        address = _bare(address)
        answer = await self._asked(RemoveMember(address))
        return _outcome(answer, f"{address} is dropped; {members_text(answer.controllers)}")

    async def add(self, address: str, seconds: float = MEMBER_SECONDS) -> Outcome:
        """Add a controller, which was started with controllerJoins=true, and wait until it is a member.
        Cancelled: the controller may become a member."""
        (new,) = await self._ask([address if "://" in address else self._named(address)])
        address = _bare(address)
        new = evolve(new, address=address)
        try:
            refusal = _unfit(new) or _misplaced(new, await self._leading_soon())
        except NoLeadingController as error:
            return Outcome(False, str(error))
        if refusal:
            return Outcome(False, refusal)
        answer = await self._asked(AddMember(address))
        if answer.refusal:
            return Outcome(False, answer.refusal)
        end = anyio.current_time() + seconds
        while address not in answer.controllers:
            if anyio.current_time() > end:
                text = (
                    f"{address} is no member yet after {seconds:g} s; it becomes one once it has the log, "
                    f"unless another comes to lead; `rmq controller drop {address}` gives it up"
                )
                return Outcome(False, text)
            await anyio.sleep(SCAN_SECONDS)
            answer = await self._asked(AddMember(address))  # again, as another controller may lead now
        return Outcome(True, f"{address} is added; {members_text(answer.controllers)}")

    async def hand_over(self, broker: str, number: int = 0, seconds: float = 30.0) -> Outcome:
        """Make another replica in sync the master of a set, and wait: `number`, or 0 for the replica with the
        longest log.

        The master takes no more messages and steps down when all its messages are in sync. Cancelled: the
        handover may still happen.
        """
        try:
            leading = await self._leading_soon()
        except NoLeadingController as error:
            return Outcome(False, str(error))
        before = leading.broker_set(broker)
        if before is None:
            names = ", ".join(sorted(one.name for one in leading.sets)) or "none"
            return Outcome(False, f"the controllers know no broker set {broker}; they know: {names}")
        if not number:
            if not before.candidates:
                text = f"no other replica of {broker} is in sync and lives; see `rmq controller status`"
                return Outcome(False, text)
            number = before.candidates[0].number
        if number == before.master:
            return Outcome(True, f"{broker} {number} is the master already, in epoch {before.epoch}")
        answer = await self._asked(ElectRequest(broker, number))
        if answer.refusal:
            return Outcome(False, answer.refusal)
        return await self._handed_over(before, number, seconds)

    async def _handed_over(self, before: ControlledSet, number: int, seconds: float) -> Outcome:
        began = anyio.current_time()
        while anyio.current_time() < began + seconds:
            try:
                now = await self.broker_set(before.name)
            except NoLeadingController:
                now = None
            if now is not None and now.epoch > before.epoch and now.master:
                took = anyio.current_time() - began
                text = f"{now.name} {now.master} is the master in epoch {now.epoch}, after {took:.1f} s"
                return Outcome(now.master == number, text)
            await anyio.sleep(SCAN_SECONDS)
        text = f"{before.name} {number} is not the master after {seconds:g} s; see `rmq controller status`"
        return Outcome(False, text)

    async def _leading_soon(self) -> ControllerState:
        """The state of the controller that leads; waits for an election in progress. Raises
        NoLeadingController."""
        end = anyio.current_time() + ELECTION_SECONDS
        while True:
            try:
                return await self.leading()
            except NoLeadingController:
                if anyio.current_time() > end or not await self._may_elect():
                    raise
            await anyio.sleep(SCAN_SECONDS)

    async def _may_elect(self) -> bool:
        """True if a majority of the controllers answers, so that one of them will lead soon."""
        states = await self.states()
        members = {address for one in states for address in one.members.values()}
        answering = {one.own_address for one in states if not one.error and not one.stopped}
        return bool(members) and 2 * len(answering & members) > len(members)

    async def _asked(self, question: Request) -> Answer:
        """The leader's answer; waits for an election in progress. Raises NoLeadingController."""
        await self._leading_soon()
        return await self._asked_now(question)

    async def _asked_now(self, question: Request) -> Answer:
        """The leader's answer: the request goes to each controller, and to the leader that it names."""
        failures: dict[str, Exception] = {}
        waiting = list(self._given)
        while waiting:
            address = waiting.pop(0)
            if address in failures:
                continue
            try:
                response = await self._call(address, self._sign(request_of(question)))
                if response.code != CONTROLLER_NOT_LEADER:
                    _check(response, address)
                return answer_of(response)
            except (NotLeader, RequestCodeNotSupported, *NETWORK_ERRORS) as error:
                failures[address] = error
                if isinstance(error, NotLeader) and error.leader:
                    waiting.insert(0, self._named(error.leader))
        why = "; ".join(f"{address}: {_explained(address, error)}" for address, error in failures.items())
        raise NoLeadingController(f"no controller leads ({why})")


@asynccontextmanager
async def opened(
    addresses: Sequence[str],
    *,
    credentials: Credentials | None = None,
    tls: TlsConfig | None = None,
    network: Network | None = None,
    sign: Sign = _unsigned,
) -> AsyncIterator[Controllers]:
    """Operations on controllers, with connections that are closed at the end of the block.

    `credentials` is the account, `sign` signs changes with the secret of the cluster's servers, `network` is
    for tests.
    """
    from rmq.client.client import SigningPool
    from rmq.remoting.endpoint import ClientOnlyEndpoint
    from rmq.remoting.network import TcpNetwork
    from rmq.remoting.pool import Pool

    network = network or TcpNetwork()
    pool = (
        Pool(network, ClientOnlyEndpoint(), tls=tls)
        if credentials is None
        else SigningPool(credentials, network, ClientOnlyEndpoint(), tls=tls)
    )
    async with pool:

        async def call(address: str, request: Command) -> Command:
            return await pool.call(address, request, SECONDS)

        yield Controllers(addresses, call, sign)


async def addresses_of(admin: Admin) -> list[str]:
    """The controllers in the settings of brokers that answer, for a cluster whose name servers are not
    controllers. Empty for a cluster without controllers. Raises as `client.admin`."""
    named = [one async for some in named_by_sets(admin) for one in some]
    return list(dict.fromkeys(named))


async def named_by_sets(
    admin: Admin, endured: tuple[type[Exception], ...] = NETWORK_ERRORS
) -> AsyncGenerator[list[str], None]:
    """The controllers in the settings of one answering broker of each set, set by set. The next broker of a
    set is asked after the errors `endured`. Raises as `client.admin`."""
    for data in (await admin.cluster_info()).broker_addr_table.values():
        for _, address in sorted(data.broker_addrs.items()):
            try:
                text = (await admin.broker_config(address)).get("controllerAddr", "")
            except endured:
                continue
            yield parse_addresses(text, "controllerAddr")
            break


def members_text(members: Sequence[str]) -> str:
    """The controllers in words, with a warning of an even number of them."""
    text = f"the controllers are {', '.join(members)}"
    if len(members) % 2 == 0:
        text += f": {len(members)} tolerate no more failures than {len(members) - 1}, add or drop another"
    return text


def leases(states: Sequence[ControllerState]) -> dict[int, str]:
    """The leases in the settings of controllers, in ms -> the last address with this value; more than one
    value is a mistake."""
    return {one.lease_ms: one.address for one in states if one.lease_ms is not None}


def is_member(one: ControllerState, leading: ControllerState | None) -> bool:
    """True if a controller is a member in the leader's state; while none leads, in its own."""
    members = (one if leading is None else leading).members
    return (one.own_address or one.address) in members.values()


def state_of(address: str, tree: Mapping[str, Any]) -> ControllerState:
    """A controller's answer as a value. Raises RemoteProtocolError for any other answer."""
    try:
        return ControllerState(
            address,
            own_address=str(tree.get("self") or ""),
            role=tree.get("role"),
            is_leading=bool(tree.get("leading")),
            leader=tree.get("leader"),
            term=tree.get("term"),
            committed=tree.get("committed"),
            members=dict(tree.get("members") or {}),
            joining=tuple(tree.get("joining") or ()),
            forgetful=tuple(tree.get("forgetful") or ()),
            is_blank=bool(tree.get("blank")),
            stopped=str(tree.get("stopped") or ""),
            lease_ms=tree.get("leaseMs"),
            agreed_lease_ms=tree.get("leaseMsAgreed"),
            elections=tree.get("elections"),
            certificate_end=str(tree.get("certificateEnd") or ""),
            sets=tuple(map(_set, tree.get("sets") or ())),
            error=str(tree.get("error") or ""),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RemoteProtocolError(f"{address} does not answer as a controller does: {error!r}") from None


def _set(row: Mapping[str, Any]) -> ControlledSet:
    replicas = tuple(
        Replica(one["number"], one["address"], one["lives"], one["reach"]) for one in row["replicas"]
    )
    in_sync = tuple(row["inSync"])
    return ControlledSet(row["cluster"], row["name"], row["epoch"], row["master"] or 0, in_sync, replicas)


def _bare(address: str) -> str:
    """An address without its scheme, as controllers know each other."""
    return address.rpartition("://")[2]


def _unfit(new: ControllerState) -> str:
    """The reason why a controller cannot be added, by its own state; empty when it can."""
    if new.error:
        return f"{new.address} does not answer: {new.error}"
    if new.own_address != new.address:
        own = new.own_address or None
        return f"{new.address} knows itself as {own}: add it by that name, or set its controllerSelf"
    return ""


def _misplaced(new: ControllerState, leading: ControllerState) -> str:
    """The reason why a controller cannot be added to the leader's controllers; empty when it can."""
    address = new.address
    if address not in leading.members and new.committed and new.leader != leading.own_address:
        others = ", ".join(new.members) or "none"
        return (
            f"{address} has a journal, of the controllers {others}: stop it, remove its folder and start it"
            " with controllerJoins=true"
        )
    if address in leading.members and new.is_blank:
        return (
            f"{address} is a controller that has lost its journal: `rmq controller drop {address}`"
            " first, then add it"
        )
    return ""


def _explained(address: str, error: Exception) -> str:
    """An error in words, with a hint where a plain connection was closed or not understood."""
    is_odd = isinstance(error, ConnectionLost | RemoteProtocolError)
    is_odd = is_odd or (isinstance(error, ConnectFailed) and error.was_open)
    return f"{error}; {TLS_HINT}" if is_odd and "://" not in address else str(error)


def _outcome(answer: Answer, text: str) -> Outcome:
    return Outcome(False, answer.refusal) if answer.refusal else Outcome(True, text)


def _each(states: Sequence[ControllerState]) -> str:
    return "; ".join(f"{one.address}: {one.problem}" for one in states)


def _check(response: Command, address: str) -> None:
    if response.code:
        raise for_code(response.code, response.remark, address)


def _object(body: bytes, address: str) -> Mapping[str, Any]:
    try:
        found = json.loads(body)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise RemoteProtocolError(f"{address} does not answer as a controller does")
    return found
