"""Filters: the messages of a topic that a consumer group selects, by tags or by an SQL92 expression.

Tags are checked in two steps, as in RocketMQ: the broker compares the hash codes in the queue units, which
may let other tags with the same code pass, and the consumer compares the tags themselves. An SQL expression
is evaluated over the properties of each message.

The SQL filters of groups are kept, compiled, in a table and in consumerFilter.json. A group's filter for a
topic comes with its heartbeats and stays when its members have gone: it is marked dead, is used again when
they return, and is removed after filterDataCleanTimeSpan. The rules and the file are those of RocketMQ 4.9's
ConsumerFilterManager.

The file has a Bloom filter beside each expression, for Java brokers that use the file later: this broker
evaluates the expression itself. Positions and bytes are equal to Java's. A filter of `f` percent error for
`n` entries has k = ceil(log_0.5(f/100)) hash functions over m bits, with m = ceil(n * log2(100/f) * log2(e))
rounded up to a multiple of 8. The hash is murmur3 x64 128 of the UTF-8 text with seed 0, of which the first
64 bits are used as two halves.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from attrs import field

from rmq.broker.filtering.bloom import BloomFilter
from rmq.broker.filtering.sql92 import FilterSyntaxError, compile_sql
from rmq.broker.filtering.subscription import ALL, VERSION_AHEAD_MS, is_tag_type, unparsable
from rmq.broker.tables.versioned import Slices, run_to_end
from rmq.errors import ResponseError, for_code
from rmq.message import PROPERTY_RETRY_TOPIC
from rmq.protocol import json
from rmq.protocol.bodies import SubscriptionData
from rmq.protocol.codes import ResponseCode
from rmq.protocol.json import JAVA
from rmq.protocol.properties import decode_properties
from rmq.protocol.record import property_bytes
from rmq.remoting.limits import AddressRate, network_of
from rmq.shares import NOBODY, Holders, Shares

if TYPE_CHECKING:
    from attrs import define

    from rmq.broker.config import Settings
else:
    from rmq.lazy_attrs import define


SQL92: Final = "SQL92"


TagMatcher = Callable[[int], bool]
MessageFilter = Callable[[Mapping[str, str]], bool]


def tag_matcher(subscription: SubscriptionData) -> TagMatcher | None:
    """A test of a queue unit's tags code; None lets every unit pass (`*`, SQL, class filters)."""
    if subscription.sub_string == ALL or subscription.class_filter_mode:
        return None
    if not is_tag_type(subscription.expression_type):
        return None
    return subscription.code_set.__contains__


def message_filter(subscription: SubscriptionData) -> MessageFilter | None:
    """A test of a message's properties; None lets every message pass (tags).

    Raises ResponseError(SUBSCRIPTION_PARSE_FAILED) for an expression that cannot be compiled.
    """
    if is_tag_type(subscription.expression_type) or subscription.class_filter_mode:
        return None
    if subscription.expression_type != SQL92:
        raise unparsable(f"there is no filter of type {subscription.expression_type!r}; use TAG or SQL92")
    try:
        return compile_sql(subscription.sub_string).matches
    except FilterSyntaxError as error:
        raise unparsable(str(error)) from None


def record_properties(record: memoryview) -> dict[str, str]:
    """The properties of a stored record; filters need nothing else of it. Raises CorruptRecord."""
    return decode_properties(str(property_bytes(record), "utf-8", JAVA))


DEAD_BEFORE_MS: Final = 30_000
"""A saved filter that was alive counts as dead since that long ago when it is loaded."""

FILTERS_MAX: Final = 10_000
"""Filters of all groups. Clients name groups and topics, and a filter outlives them for a day."""

CHARACTERS_MAX: Final = 1 << 20
"""Of the expressions of all filters: compiled they need some 70 times as much memory."""
AT_ONCE: Final = 2_048
"""Characters of expressions that are compiled in a second as they come, each 2 to 5 us; others wait for the
first pull that needs them. A heartbeat may bring sixty that take 25 ms each."""
COMPILED_BURST_SECONDS: Final = 16
"""An address may have `AT_ONCE` characters a second compiled by what it asks, and save them up so long: a
client has as many expressions as groups, who attacks has another one in each pull."""

SLICE_ROWS: Final = 100

log = logging.getLogger("rmq.broker")


@define(eq=False)
class Filter:
    """A group's filter for a topic. Times are in ms; `dead_ms` is 0 while the group has members."""

    group: str
    topic: str
    expression: str
    expression_type: str
    matches: MessageFilter | None = field(repr=False)
    is_compiled: bool = field(repr=False)
    born_ms: int
    client_version: int
    bits: list[int] = field(repr=False)
    dead_ms: int = 0
    holders: Holders = field(default=NOBODY, repr=False)

    @property
    def is_dead(self) -> bool:
        return self.dead_ms >= self.born_ms

    def row(self, bit_count: int) -> dict[str, Any]:
        """The filter as it stands in the file."""
        return {
            "bloomFilterData": {"bitNum": bit_count, "bitPos": self.bits},
            "bornTime": self.born_ms,
            "clientVersion": self.client_version,
            "consumerGroup": self.group,
            "dead": self.is_dead,
            "deadTime": self.dead_ms,
            "expression": self.expression,
            "expressionType": self.expression_type,
            "topic": self.topic,
        }


class FilterTable:
    """The filters by topic and group. `now_ms` is wall time, `clock` is in seconds."""

    def __init__(self, settings: Settings, now_ms: Callable[[], int], clock: Callable[[], float]) -> None:
        self._settings = settings
        self._was_on = settings.broker.enable_property_filter
        self.is_changed = False
        self._now_ms = now_ms
        self._clock = clock
        self._rate = AddressRate(AT_ONCE, COMPILED_BURST_SECONDS)
        config = settings.broker
        self._bloom = BloomFilter(
            config.max_error_rate_of_bloom_filter, config.expect_consumer_num_use_filter
        )
        self._table: dict[str, dict[str, Filter]] = {}
        self._filters = Shares(FILTERS_MAX)
        self._characters = Shares(CHARACTERS_MAX)
        self._second = 0
        self._at_once = AT_ONCE
        settings.derive(self._settings_changed)

    def _settings_changed(self) -> None:
        """Compile the filters that came while filtering was disabled."""
        was_on, self._was_on = self._was_on, self._settings.broker.enable_property_filter
        if self._was_on and not was_on:
            for known in [known for table in self._table.values() for known in table.values()]:
                self._prepare(known)

    def get(self, topic: str, group: str) -> Filter | None:
        """The group's filter for the topic, dead or alive; None for a group that filters by tags."""
        return self._table.get(topic, {}).get(group)

    def usable(self, topic: str, group: str, peer: str | None = None) -> Filter | None:
        """Same as `get`, compiled on demand; None also for a filter that cannot be compiled, which is
        removed. Raises ResponseError when the address of the `peer` has had too many filters compiled."""
        known = self.get(topic, group)
        if known is None or known.is_compiled:
            return known
        if peer is not None:
            self._check_rate(known.expression, peer)
        return known if self._compile(known) else None

    def compiled(self, subscription: SubscriptionData, peer: str) -> MessageFilter | None:
        """`message_filter` of an expression that a peer asks about. Raises ResponseError, also when its
        address has had too much compiled."""
        self._check_rate(subscription.sub_string, peer)
        return message_filter(subscription)

    def _check_rate(self, expression: str, peer: str) -> None:
        address = network_of(peer)
        if not self._rate.take(address, self._clock(), len(expression)):
            raise for_code(
                ResponseCode.SYSTEM_BUSY,
                f"[OVERLOAD]system busy, start flow control for a while: {address} has had more than "
                f"{AT_ONCE} characters of filter expressions compiled in a second",
            )

    def row(self, topic: str, group: str) -> dict[str, Any] | None:
        """The group's filter for the topic as it stands in the file."""
        known = self.get(topic, group)
        return None if known is None else known.row(self._bloom.bits)

    def of_retries(self, group: str) -> MessageFilter:
        """A test of a message that came back from the group: by the filter of the topic it was in first."""

        def accepts(properties: Mapping[str, str]) -> bool:
            known = self.usable(properties.get(PROPERTY_RETRY_TOPIC, ""), group)
            return known is None or known.matches is None or known.matches(properties)

        return accepts

    def is_possible(self, version: int) -> bool:
        """True if a subscription's version is a plausible time of a client's clock. Other versions do not
        show that a client has newer subscriptions than the broker knows."""
        return version <= self._now_ms() + VERSION_AHEAD_MS

    # --- what clients announce ---

    def register(
        self, group: str, subscriptions: Iterable[SubscriptionData], holders: Holders = NOBODY
    ) -> None:
        """Take the subscriptions of a member; the group's filters for other topics are dead from now on."""
        topics = set()
        for subscription in subscriptions:
            topics.add(subscription.topic)
            self.take(group, subscription, holders)
        for known in self._of(group):
            if known.topic not in topics:
                self._die(known)

    def take(self, group: str, subscription: SubscriptionData, holders: Holders = NOBODY) -> None:
        """Take the group's subscription of a topic, unless it is by tags or filters are not allowed."""
        has_filter = subscription.sub_string and not is_tag_type(subscription.expression_type)
        if has_filter and self._settings.broker.enable_property_filter:
            self._register(group, subscription, holders)

    def unregister(self, group: str) -> None:
        """The group has no member left."""
        for known in self._of(group):
            self._die(known)

    def _register(self, group: str, subscription: SubscriptionData, holders: Holders) -> None:
        known = self.get(subscription.topic, group)
        if known is None:
            self._put(group, subscription, holders)
            return
        same = (known.expression, known.expression_type) == (
            subscription.sub_string,
            subscription.expression_type,
        )
        newer = (
            subscription.sub_version - known.client_version if self.is_possible(known.client_version) else 1
        )
        if newer > 0 and not same:
            self._put(group, subscription, holders)
        elif newer > 0 or (newer == 0 and known.is_dead):
            known.client_version, known.dead_ms = subscription.sub_version, 0
            self.is_changed = True
        elif not same:
            log.warning("group %s: a filter not newer than %s is ignored: %s", group, known, subscription)

    def _put(self, group: str, subscription: SubscriptionData, holders: Holders) -> None:
        """Put a filter in, compiled if filtering is enabled; a filter that cannot be compiled removes its
        predecessor."""
        self.is_changed = True
        made = Filter(
            group,
            subscription.topic,
            subscription.sub_string,
            subscription.expression_type or "",
            None,
            False,
            self._now_ms(),
            subscription.sub_version,
            self._bits(group, subscription.topic),
            holders=holders,
        )
        before = self.get(subscription.topic, group)
        if before is not None:
            self._remove(before)
        characters = len(made.expression)
        full = self._filters.full(holders) or self._characters.full(holders, characters)
        if full:
            text = "the filter of group %s for %s is not kept: of filters or their characters %s"
            log.warning(text, group, subscription.topic, full)
            return
        self._filters.add(holders)
        self._characters.add(holders, characters)
        self._table.setdefault(subscription.topic, {})[group] = made
        if not self._settings.broker.enable_property_filter or self._prepare(made):
            log.info("filter registered: %s", made)

    def _prepare(self, made: Filter) -> bool:
        """Compile a filter unless many come together; return whether the filter exists now."""
        second = self._now_ms() // 1000
        if second != self._second:
            self._second, self._at_once = second, AT_ONCE
        self._at_once -= len(made.expression)
        return self._at_once < 0 or self._compile(made)

    def _compile(self, made: Filter) -> bool:
        """Compile a filter, or remove a filter that cannot be compiled; return whether the filter exists
        now."""
        subscription = SubscriptionData(made.topic, made.expression, expression_type=made.expression_type)
        try:
            made.matches, made.is_compiled = message_filter(subscription), True
        except ResponseError as error:
            log.warning("group %s: its filter for %s is not usable: %s", made.group, made.topic, error)
            self._remove(made)
            self.is_changed = True
            return False
        return True

    def _remove(self, known: Filter) -> None:
        table = self._table[known.topic]
        del table[known.group]
        self._filters.give(known.holders)
        self._characters.give(known.holders, len(known.expression))
        if not table:
            del self._table[known.topic]

    def _die(self, known: Filter) -> None:
        if not known.is_dead:
            # Not before its birth, or it would count as alive: the wall clock may have been set back.
            known.dead_ms = max(self._now_ms(), known.born_ms)
            self.is_changed = True

    def _of(self, group: str) -> Iterator[Filter]:
        for table in self._table.values():
            if group in table:
                yield table[group]

    def _bits(self, group: str, topic: str) -> list[int]:
        return self._bloom.positions(f"{group}#{topic}")

    # --- the file ---

    def clean(self) -> None:
        """Remove the filters that have been dead for too long."""
        now, span = self._now_ms(), self._settings.broker.filter_data_clean_time_span
        for table in list(self._table.values()):
            for known in list(table.values()):
                if known.is_dead and now - known.dead_ms >= span:
                    log.info("filter removed, dead for too long: %s", known)
                    self._remove(known)
                    self.is_changed = True

    def to_json(self) -> bytes:
        """The content of consumerFilter.json, made at once."""
        return run_to_end(self.text())

    def text(self) -> Slices[bytes]:
        """The content of consumerFilter.json; unsets `is_changed`. Each row has its state at the time of its
        slice: a later change sets `is_changed` again."""
        self.is_changed = False
        pieces, count, after_topic = [b'{"filterDataByTopic":{'], 0, b""
        for topic, table in list(self._table.items()):
            after_row = after_topic + json.dumps(topic) + b':{"groupFilterData":{'
            for group, known in list(table.items()):
                pieces += (after_row, json.dumps(group), b":", json.dumps(known.row(self._bloom.bits)))
                after_row = b","
                count += 1
                if count % SLICE_ROWS == 0:
                    yield
            if after_row == b",":
                pieces += (b'},"topic":', json.dumps(topic), b"}")
                after_topic = b","
        return b"".join((*pieces, b"}}"))

    def load(self, data: bytes | None) -> None:
        """Take a saved table. One made with other Bloom settings is dropped as a whole, as Java does."""
        saved = json.loads(data).get("filterDataByTopic", {}) if data else {}
        rows = [row for table in saved.values() for row in table.get("groupFilterData", {}).values()]
        if not all(self._is_valid(row.get("bloomFilterData")) for row in rows):
            log.warning("the Bloom settings have changed: dropped the saved filters, clients send them again")
            return
        for row in rows:
            try:
                self._load(row)
            except (KeyError, TypeError, ValueError) as error:
                log.warning("a saved filter is not readable (%r) and dropped: %s", error, row)

    def _is_valid(self, bloom: Any) -> bool:
        return (
            isinstance(bloom, dict)
            and bloom.get("bitNum") == self._bloom.bits
            and len(bloom.get("bitPos") or ()) == self._bloom.hashes
        )

    def _load(self, row: dict[str, Any]) -> None:
        group, topic, expression = row["consumerGroup"], row["topic"], row["expression"]
        kind, version = row["expressionType"], int(row["clientVersion"])
        saved = SubscriptionData(topic, expression, sub_version=version, expression_type=kind)
        self._put(group, saved, NOBODY)
        known = self.get(topic, group)
        if known is not None:
            known.born_ms = int(row["bornTime"])
            dead_ms = int(row["deadTime"]) or self._now_ms() - DEAD_BEFORE_MS
            known.dead_ms = max(dead_ms, known.born_ms)
        self.is_changed = False
