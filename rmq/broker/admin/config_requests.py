"""Requests of RocketMQ 5.x for the settings of a topic or group, and for the way in which a group consumes.

The mode in which a group consumes a topic (PULL or POP) is an attribute of the group, `rmq.mode@TOPIC`, so
that slaves and restarts keep the mode.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from attrs import evolve

from rmq.broker.tables.topics import unknown_topic
from rmq.errors import for_code
from rmq.protocol import codes, json
from rmq.protocol.codes import ResponseCode
from rmq.protocol.pop import (
    GetSubscriptionGroupConfigRequestHeader,
    GetTopicConfigRequestHeader,
    SetMessageRequestModeRequestBody,
)

if TYPE_CHECKING:
    from rmq.broker.admin.pending_changes import PendingChanges
    from rmq.broker.config import Settings
    from rmq.broker.state import Tables
    from rmq.protocol.command import Command

MODE: Final = "rmq.mode@"
POP: Final = "POP"
MODES_OF_A_GROUP: Final = 1_000


class ConfigRequests:
    """Handles GET_TOPIC_CONFIG, GET_SUBSCRIPTIONGROUP_CONFIG, SET_MESSAGE_REQUEST_MODE,
    GET_ALL_MESSAGE_REQUEST_MODE.
    """

    def __init__(self, settings: Settings, tables: Tables, changes: PendingChanges) -> None:
        self._settings = settings
        self._topics = tables.topics
        self._groups = tables.groups
        self._changes = changes

    def handlers(self) -> dict[int, Callable[[Command, Any, int], Command | None]]:
        """Request codes and their handlers."""
        return {
            codes.GET_TOPIC_CONFIG: self._on_topic,
            codes.GET_SUBSCRIPTIONGROUP_CONFIG: self._on_group,
            codes.SET_MESSAGE_REQUEST_MODE: self._on_mode,
            codes.GET_ALL_MESSAGE_REQUEST_MODE: self._on_modes,
        }

    def _on_topic(self, request: Command, connection: Any, now: int) -> Command:
        name = request.read(GetTopicConfigRequestHeader).topic
        topic = self._topics.get(name)
        if topic is None:
            raise unknown_topic(name)
        value = topic.to_value()
        value.setdefault("attributes", {})
        return request.reply(body=json.dumps(value))

    def _on_group(self, request: Command, connection: Any, now: int) -> Command:
        name = request.read(GetSubscriptionGroupConfigRequestHeader).group
        group = self._groups.table.get(name)
        if group is None:
            raise self._groups.unknown(name)
        return request.reply(body=group.to_json())

    def _on_mode(self, request: Command, connection: Any, now: int) -> Command | None:
        body = SetMessageRequestModeRequestBody.from_request(request.body)
        holders = self._settings.holders_of(connection)
        group = self._groups.get(body.consumer_group, holders)
        if group is None:
            raise self._groups.unknown(body.consumer_group, holders)
        if body.mode not in ("PULL", POP):
            raise for_code(ResponseCode.SYSTEM_ERROR, f"mode {body.mode!r:.40}: expected PULL or POP")
        if self._topics.get(body.topic) is None:
            raise unknown_topic(body.topic)
        attributes = dict(group.attributes or {})
        attributes.pop(MODE + body.topic, None)
        if body.mode == POP:
            attributes[MODE + body.topic] = f"{POP} {body.pop_share_queue_num}"
        if len(attributes) > MODES_OF_A_GROUP:
            raise for_code(
                ResponseCode.SYSTEM_ERROR,
                f"group {body.consumer_group} has {len(attributes)} attributes, {MODES_OF_A_GROUP} are kept",
            )
        undo = self._groups.change(body.consumer_group, evolve(group, attributes=attributes or None), now)
        return self._changes.answer("subscriptionGroup", request, connection, undo)

    def _on_modes(self, request: Command, connection: Any, now: int) -> Command:
        """All modes, as a slave of RocketMQ's asks its master for them: topic -> group -> mode."""
        found: dict[str, dict[str, dict[str, object]]] = {}
        for name, group in self._groups.table.items():
            for key, text in (group.attributes or {}).items():
                if not key.startswith(MODE):
                    continue
                topic, (mode, _, share) = key.removeprefix(MODE), text.partition(" ")
                found.setdefault(topic, {})[name] = {
                    "topic": topic,
                    "consumerGroup": name,
                    "mode": mode,
                    "popShareQueueNum": int(share) if share.lstrip("-").isdigit() else 0,
                }
        return request.reply(body=json.dumps({"messageRequestModeMap": found}))
