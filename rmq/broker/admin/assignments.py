"""QUERY_ASSIGNMENT of RocketMQ 5.x: the queues of a consumer, of all brokers of a topic.

RocketMQ's consumers with `clientRebalance=false` ask one broker of a topic, so that the answer names the
queues of all brokers. Their route comes from a name server and holds for some seconds; a request that has to
wait for the route is a row, and the service's loop asks for the routes of all waiting topics.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from rmq.broker.admin.config_requests import MODE, POP
from rmq.errors import ResponseError, for_code
from rmq.message import RETRY_PREFIX, MessageQueue, average_share
from rmq.protocol import codes, json
from rmq.protocol.codes import PERM_READ, ResponseCode
from rmq.protocol.pop import QueryAssignmentRequestBody, assignment_json
from rmq.server.deferred import Deferred

if TYPE_CHECKING:
    from attrs import frozen

    from rmq.broker.config import Settings
    from rmq.broker.membership.clients import Clients
    from rmq.broker.state import Tables
    from rmq.protocol.bodies import TopicRouteData
    from rmq.protocol.command import Command
else:
    from rmq.lazy_attrs import frozen

ROUTE_SECONDS: Final = 20.0
"""So long a route is not asked for again."""
ROUTES_MAX: Final = 10_000
WAITING_MAX: Final = 10_000
QUEUES_MAX: Final = 1 << 16

log = logging.getLogger("rmq.broker")


@frozen
class _Asked:
    """A request that waits for a route."""

    request: Command
    connection: Any
    body: QueryAssignmentRequestBody


@frozen
class _Route:
    """The queues of a topic that may be read, in order, and until when they hold."""

    queues: Sequence[MessageQueue]
    until: float


class Assignments:
    """Handles QUERY_ASSIGNMENT. `respond` sends a response; `on_pending()` is called when a route is wanted,
    and without it only this broker's queues are known."""

    def __init__(
        self,
        settings: Settings,
        tables: Tables,
        clients: Clients,
        *,
        clock: Callable[[], float],
        respond: Callable[[Command, Command, Any], None],
        on_pending: Callable[[], None] | None,
    ) -> None:
        self._settings = settings
        self._topics = tables.topics
        self._groups = tables.groups
        self._clients = clients
        self._clock = clock
        self._respond = respond
        self._on_pending = on_pending
        self._routes: dict[str, _Route] = {}
        self._waiting: Deferred[str, _Asked] = Deferred(WAITING_MAX, "the requests that wait for routes")

    def handlers(self) -> dict[int, Callable[[Command, Any, int], Command | None]]:
        """Request codes and their handlers."""
        return {codes.QUERY_ASSIGNMENT: self._on_assignment}

    def _on_assignment(self, request: Command, connection: Any, now: int) -> Command | None:
        body = QueryAssignmentRequestBody.from_request(request.body)
        known = self._routes.get(body.topic)
        if known is not None and known.until > self._clock():
            return request.reply(body=self._answer(body, known.queues))
        if self._on_pending is None or not self._settings.broker.namesrv_addr:
            return request.reply(body=self._answer(body, self._own(body.topic)))
        holders = self._settings.holders_of(connection)
        self._waiting.check(holders)
        request.shrink()
        self._waiting.add(body.topic, _Asked(request, connection, body), holders=holders)
        self._on_pending()
        return None

    # ---- routes ----

    def awaited_topics(self) -> list[str]:
        """The topics whose routes are awaited."""
        return self._waiting.waiting_keys()

    def routed(self, topic: str, route: TopicRouteData | None) -> None:
        """Take a route from a name server, or None without one, and answer the waiting requests."""
        if route is not None:
            queues = [
                MessageQueue(topic, one.broker_name, number)
                for one in sorted(route.queue_datas, key=lambda one: one.broker_name)
                if one.perm & PERM_READ
                for number in range(min(one.read_queue_nums, QUEUES_MAX))
            ]
            if len(self._routes) >= ROUTES_MAX:
                self._routes.clear()
            self._routes[topic] = _Route(queues, self._clock() + ROUTE_SECONDS)
        known = self._routes.get(topic)  # an old one, where no name server answers
        for asked in self._waiting.end(topic):
            self._finish(asked, None if known is None else known.queues)

    def _finish(self, asked: _Asked, queues: Sequence[MessageQueue] | None) -> None:
        request = asked.request
        try:
            if queues is None:
                remark = f"no name server has a route of topic {asked.body.topic}"
                raise for_code(ResponseCode.TOPIC_NOT_EXIST, remark)
            response = request.reply(body=self._answer(asked.body, queues))
        except ResponseError as error:
            response = request.reply(error.code, error.remark)
        self._respond(request, response, asked.connection)

    def _own(self, topic: str) -> list[MessageQueue]:
        config = self._topics.get(topic)
        if config is None:
            raise for_code(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist")
        name = self._settings.broker.broker_name
        return [MessageQueue(topic, name, number) for number in range(config.read_queue_nums)]

    # ---- the answer ----

    def _answer(self, body: QueryAssignmentRequestBody, queues: Sequence[MessageQueue]) -> bytes:
        """The queues of a client. Without a list the client is not yet a member of the group, and keeps its
        present queues."""
        mode, share = self._mode(body.consumer_group, body.topic)
        found: Sequence[MessageQueue] = queues
        if body.message_model != "BROADCASTING":
            members = sorted(self._clients.consumer_ids(body.consumer_group))
            if mode == POP:
                found = pop_queues(queues, members, body.client_id, share, body.strategy_name)
            elif body.client_id not in members:
                return json.dumps({})
            else:
                found = shared(queues, members, body.client_id, body.strategy_name)
        return json.dumps({"messageQueueAssignments": assignment_json(found, mode)})

    def _mode(self, group: str, topic: str) -> tuple[str, int]:
        """PULL or POP, and among how many more members a popping member's queues are shared."""
        config = self._groups.table.get(group)
        text = ((config and config.attributes) or {}).get(MODE + topic, "")
        if not text or topic.startswith(RETRY_PREFIX):
            return "PULL", 0
        mode, _, share = text.partition(" ")
        return mode, int(share) if share.lstrip("-").isdigit() else 0


def shared(
    queues: Sequence[MessageQueue], members: Sequence[str], client_id: str, strategy: str
) -> list[MessageQueue]:
    """The queues of a member, as by RocketMQ's strategies AVG and AVG_BY_CIRCLE. Raises ResponseError for any
    other strategy."""
    if client_id not in members:
        return []
    at = members.index(client_id)
    if strategy in ("AVG", ""):
        return [queues[place] for place in average_share(len(queues), len(members), at)]
    if strategy == "AVG_BY_CIRCLE":
        return list(queues[at :: len(members)])
    raise for_code(ResponseCode.SYSTEM_ERROR, f"strategy {strategy!r:.40}: expected AVG or AVG_BY_CIRCLE")


def pop_queues(
    queues: Sequence[MessageQueue], members: Sequence[str], client_id: str, share: int, strategy: str
) -> list[MessageQueue]:
    """The queues that a member pops: a queue -1 of each broker, which stands for all of its queues; or, where
    `share` members more share the queues of each member, the member's own queues and those of the next
    `share` members."""
    if share <= 0 or share >= len(members) - 1:
        brokers = dict.fromkeys(queue.broker_name for queue in queues)
        return [MessageQueue(queues[0].topic, broker, -1) for broker in brokers]
    if client_id not in members or not queues:
        return []
    at = members.index(client_id)
    if len(members) > len(queues):
        return [queues[at % len(queues)]]
    found: dict[MessageQueue, None] = {}
    for step in range(share + 1):
        member = members[(at + step) % len(members)]
        found.update(dict.fromkeys(shared(queues, members, member, strategy)))
    return list(found)
