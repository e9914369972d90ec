"""Accounts: names, addresses, and permissions. Values only; `plainfile` reads them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from attrs import Factory, field, frozen

from rmq.message import (
    DLQ_PREFIX,
    REPLY_TOPIC_POSTFIX,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    TRACE_TOPIC,
    TRANS_CHECK_MAX_TIME_TOPIC,
    TRANS_HALF_TOPIC,
    TRANS_OP_HALF_TOPIC,
)
from rmq.protocol.auth.quota import Quota, parse_quota
from rmq.protocol.auth.signature import Key
from rmq_acl import permissions
from rmq_acl.addresses import WhiteAddress

INTERNAL_TOPICS: Final = frozenset(
    {SCHEDULE_TOPIC, TIMER_TOPIC, TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC}
)
"""Topics with messages of all topics: a default permission does not include them, only an entry of their
own."""

REQUIRED: Final = "required"
"""Mode: an account's requests must be proved (rmq.protocol.auth.signature): clients of RocketMQ cannot work
for it."""
SHOWN: Final = "shown"
"""Mode: requests must be proved from the first proved one on, for as long as the server runs."""
OPTIONAL: Final = "optional"
"""Mode: a request without proof is accepted, as in RocketMQ."""
PROOFS: Final = (REQUIRED, SHOWN, OPTIONAL)

_ALL: Final = permissions.PUB | permissions.SUB


def beyond_default(topic: str) -> int:
    """The rights that no default permission gives, since such a topic holds messages of topics that entries
    may deny: none at all for dead letters and the broker's own topics, and no SUB for replies and traces,
    which every client writes."""
    if topic in INTERNAL_TOPICS or topic.startswith(DLQ_PREFIX):
        return _ALL
    if topic == TRACE_TOPIC or topic.endswith(f"_{REPLY_TOPIC_POSTFIX}"):
        return permissions.SUB
    return 0


@frozen
class Account:
    """An account. `topics` and `groups` hold specific permissions; all other topics and groups have the
    default. `proof` is an element of `PROOFS`, or empty, which leaves the choice to the server. `quota_text`
    is the quota in its written form, `quota` its value; None: no limit."""

    access_key: str
    secret_key: str = field(repr=False)
    admin: bool = False
    white: WhiteAddress = field(factory=WhiteAddress)
    default_topic: int = permissions.DENY
    default_group: int = permissions.DENY
    topics: Mapping[str, int] = field(factory=dict)
    groups: Mapping[str, int] = field(factory=dict)
    proof: str = ""
    quota_text: str = ""
    quota: Quota | None = field(
        default=Factory(lambda self: parse_quota(self.quota_text), takes_self=True), init=False, eq=False
    )
    key: Key = field(
        default=Factory(lambda self: Key(self.secret_key), takes_self=True), init=False, repr=False, eq=False
    )

    @property
    def is_unlimited(self) -> bool:
        """True for an administrator without permissions of its own: it has all."""
        return self.admin and not self.topics and not self.groups

    def topic_permission(self, topic: str) -> int:
        """The account's permission for a topic; a retry topic has its group's."""
        if topic.startswith(RETRY_PREFIX):
            return self.group_permission(topic[len(RETRY_PREFIX) :])
        if self.is_unlimited:
            return _ALL
        given = self.topics.get(topic)
        return self.default_topic & ~beyond_default(topic) if given is None else given

    def group_permission(self, group: str) -> int:
        """The account's permission for a consumer group."""
        return _ALL if self.is_unlimited else self.groups.get(group, self.default_group)


@frozen
class Accounts:
    """All accounts, and the addresses that need none."""

    table: Mapping[str, Account] = field(factory=dict)
    white: tuple[WhiteAddress, ...] = ()

    def is_white(self, host: str) -> bool:
        """True if requests from an address need no signature."""
        return any(host in addresses for addresses in self.white)
