"""The options of the data sources `rmq` and `rmqstore`: with the names of Spark's Kafka connector where they
fit.

An unknown option or a wrong value is a ConfigError with the expected form. Secrets are in no text made from
these values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import attrs
from attrs import frozen
from attrs.validators import optional

from rmq.config import at_least, between, java_key, load, one_of, parse_addresses, setting
from rmq.errors import ConfigError
from rmq.message import MessageQueue, validate_group, validate_topic
from rmq.spark.offsets import EARLIEST, LATEST, Offsets, parse_offsets
from rmq.spark.option_parsing import load_options, names_in

if TYPE_CHECKING:  # Spark checks options in processes of their own, which need no client
    from rmq.client.config import ClientConfig
    from rmq.client.consume.subscription import Sql
    from rmq.protocol.auth.signature import Credentials
    from rmq.remoting.transports.tls import TlsConfig

KIB: Final = 1024
MIB: Final = 1024 * KIB
DEFAULT_GROUP: Final = "rmq-spark"
"""The group of reads and writes without one; nothing is committed for it."""

_ALL_TAGS: Final = "*"
_STORE_WORDS: Final = {"via", "oncorrupt"}
_STREAM_ONLY: Final = ("max_offsets_per_trigger", "min_offsets_per_trigger")
_DURATION: Final = re.compile(r"([0-9]{1,9})\s*(ms|s|m|h)")
_UNITS_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}


def _secret(help: str) -> Any:
    return attrs.field(default="", repr=False, metadata={"help": help, "secret": True})


@frozen(kw_only=True)
class ConnectOptions:
    """Address and account of the cluster."""

    name_server: str = setting("", help="Name servers as `host:port;host:port`; required")
    access_key: str = setting("", help="ACL: the account")
    secret_key: str = _secret("ACL: its secret; better `secretKeyFile`, since Spark keeps options in plans")
    secret_key_file: str = setting("", help="ACL: a file with the secret, on every machine of the cluster")
    tls: bool = setting(False, help="Connect by TLS")
    tls_ca: str = setting("", help="PEM file of the trusted authorities; empty: the system's")
    tls_cert: str = setting("", help="PEM file of the client's own certificate")
    tls_key: str = setting("", help="PEM file of its key")
    tls_insecure: bool = setting(False, help="Accept any certificate; for tests only")
    request_timeout_ms: int = setting(
        10_000, help="One request to a name server or broker", unit="ms", validator=at_least(1)
    )
    require_brokers: str = setting(
        "",
        help="Brokers, separated by commas, that reads, and writes that are to be stored once, wait for and"
        " fail without: name servers do not know a broker that has stopped, nor its queues",
    )

    client: tuple[tuple[str, str], ...] = setting(
        (), help="Any setting of the client, as `client.<its name>`: `client.pollNameServerInterval`"
    )

    @property
    def required_brokers(self) -> frozenset[str]:
        """The names in `require_brokers`."""
        return frozenset(names_in(self.require_brokers))

    def client_config(self, **settings: Any) -> ClientConfig:
        """The settings of the client: `settings`, and over them the options."""
        from rmq.client.config import ClientConfig

        return load(ClientConfig, arguments={**settings, **dict(self.client)}, environment={})

    def credentials(self) -> Credentials | None:
        """The account, or None. Raises ConfigError when the file of the secret cannot be read."""
        if not self.access_key:
            return None
        from rmq.protocol.auth.signature import Credentials

        secret = self.secret_key
        if self.secret_key_file:
            try:
                with open(self.secret_key_file, encoding="utf-8") as file:
                    secret = file.read().strip()
            except OSError as error:
                expected = f"a readable file ({error.strerror})"
                raise ConfigError("secretKeyFile", self.secret_key_file, expected) from None
        return Credentials(self.access_key, secret)

    def tls_config(self) -> TlsConfig | None:
        """The TLS settings, or None."""
        if not self.tls:
            return None
        from rmq.remoting.transports.tls import TlsConfig

        return TlsConfig(
            tls_mode="enforcing",
            tls_trust_path=self.tls_ca,
            tls_cert_path=self.tls_cert,
            tls_key_path=self.tls_key,
            tls_insecure_skip_verify=self.tls_insecure,
        )


@frozen(kw_only=True)
class ReadOptions(ConnectOptions):
    """Options of a read. Made by `read_options`, which checks that they fit together."""

    topic: str = setting("", help="Topics, separated by commas; or `topicPattern` or `assign`")
    topic_pattern: str = setting("", help="A regular expression that whole topic names match")
    assign: str = setting("", help='Single queues, as `{"topic":{"broker":[0,1]}}`')
    starting_offsets: str = setting(
        "",
        help="`earliest`, `latest` (streams only), `group` (where groupId has committed), or JSON"
        " `{topic:{broker:{queue:offset}}}`, -2 earliest, -1 latest. Default: batch earliest, stream latest",
    )
    ending_offsets: str = setting("", help="Batch: `latest` (default), or JSON as above")
    starting_timestamp: int | None = setting(
        None,
        help="Instead: begin with what was stored then or later",
        unit="ms",
        validator=optional(at_least(0)),
    )
    ending_timestamp: int | None = setting(
        None, help="Batch: end before what was stored then", unit="ms", validator=optional(at_least(0))
    )
    starting_offsets_by_timestamp: str = setting(
        "", help="The same for each queue, as JSON `{topic:{broker:{queue:ms}}}`"
    )
    ending_offsets_by_timestamp: str = setting("", help="Batch: likewise")
    timestamp_strategy: str = setting(
        "latest",
        help="What a time means after which a queue has no message: `latest`, its end, or an `error`",
        validator=one_of("latest", "error"),
    )
    max_offsets_per_trigger: int = setting(
        0, help="Stream: at most so many messages a batch, shared out by lag; 0: all", validator=at_least(0)
    )
    min_offsets_per_trigger: int = setting(
        0, help="Stream: no batch before so many messages are there", validator=at_least(0)
    )
    max_trigger_delay: str = setting("15m", help="But after this time (`15m`, `30s`) any number will do")
    min_partitions: int = setting(
        0,
        help="Split the queues' ranges into so many tasks, or join them when there are more queues",
        validator=between(0, 100_000),
    )
    max_partitions: int = setting(
        0,
        help="Join queues of one broker until there are at most so many tasks, if there are no more brokers;"
        " 0: minPartitions, or else one for each 20,000 messages, and 16 at least",
        validator=between(0, 100_000),
    )
    max_records_per_partition: int = setting(
        0, help="Split so that no task reads more; 0: no limit", validator=at_least(0)
    )
    fail_on_data_loss: bool = setting(
        True, help="Fail when messages are gone that were to be read; else skip them and log it"
    )
    filter: str = setting("", help="Tags, as `paid || refunded`")
    filter_sql: str = setting("", help="An SQL92 expression over properties; the broker must allow it")
    group_id: str = setting(
        "", help="Stream: offsets are committed for it as a lag report; pins `latest`. Batch: for `group`"
    )
    state_location: str = setting(
        "",
        help="A folder that the driver can write, where a stream keeps its first offsets, and a batch the"
        " brokers that its topics had, to fail when one of them is away",
    )
    require_topics: bool = setting(True, help="Fail when `topicPattern` matches no topic at the beginning")
    columns: str = setting(
        "", help="The columns to read, separated by commas, as with `.schema`; default: all of them"
    )
    pull_batch: int = setting(
        1024, help="Messages asked for in a pull; brokers give fewer", validator=between(1, 65_536)
    )
    pulls_in_flight: int = setting(
        8, help="Pulls of one task that are under way at once", validator=between(1, 256)
    )
    pull_timeout_ms: int = setting(
        60_000, help="A task fails when it gets nothing for so long", unit="ms", validator=at_least(1)
    )
    require_masters: bool = setting(
        True, help="`requireBrokers` waits for masters; `false`: a slave will do, whose end may come earlier"
    )
    on_broker_away: str = setting(
        "wait",
        help="A broker with queues of the read that does not answer: `wait` for `pullTimeoutMs`, then fail;"
        " `skip`: read the others now, with a warning; a stream keeps the offsets of its queues and reads"
        " them later",
        validator=one_of("wait", "skip"),
    )
    batch_rows: int = setting(16_384, help="Rows of an Arrow batch, about", validator=at_least(1))
    batch_bytes: int = setting(8 * MIB, help="Or bytes", unit="bytes", validator=at_least(1))
    decompress: bool = setting(True, help="Decompress bodies")
    on_corrupt: str = setting(
        "fail",
        help="A compressed body that cannot be read, or grows over 16 MiB: `fail`, or give `null` or the"
        " `raw` bytes and log it",
        validator=one_of("fail", "null", "raw"),
    )
    pushdown: bool = setting(
        False,
        help="Batch: read only what filters may let through; see docs/spark.md for what Spark then needs",
    )

    @property
    def group(self) -> str:
        """The consumer group of the requests."""
        return self.group_id or DEFAULT_GROUP

    @property
    def expression(self) -> str | Sql:
        """The filter, in the form of a subscription."""
        if not self.filter_sql:
            return self.filter or _ALL_TAGS
        from rmq.client.consume.subscription import Sql

        return Sql(self.filter_sql)

    @property
    def null_columns(self) -> frozenset[str]:
        """The columns of a message that may be null although it has them."""
        return frozenset({"body"}) if self.on_corrupt == "null" else frozenset()

    @property
    def skips(self) -> bool:
        """True if brokers that are away are skipped, not waited for."""
        return self.on_broker_away == "skip"

    @property
    def is_filtered(self) -> bool:
        """True if the broker leaves messages out."""
        return bool(self.filter_sql) or self.filter.strip() not in ("", _ALL_TAGS)

    @property
    def tags(self) -> frozenset[str]:
        """The wanted tags; empty for all. Brokers compare hashes only, so readers compare again."""
        if self.filter_sql or not self.is_filtered:
            return frozenset()
        return frozenset(filter(None, (tag.strip() for tag in self.filter.split("||"))))

    @property
    def topics(self) -> tuple[str, ...]:
        """The named topics."""
        if self.assign:
            return tuple(dict.fromkeys(queue.topic for queue in self.queues))
        return names_in(self.topic)

    @property
    def queues(self) -> tuple[MessageQueue, ...]:
        """The queues of `assign`."""
        return _assigned(self.assign) if self.assign else ()

    @property
    def starting_times(self) -> int | Offsets | None:
        """Begins in ms since 1970, for all queues or for each; None: not by time."""
        return self._times(self.starting_timestamp, "starting_offsets_by_timestamp")

    @property
    def ending_times(self) -> int | Offsets | None:
        """Ends in ms since 1970, for all queues or for each; None: not by time."""
        return self._times(self.ending_timestamp, "ending_offsets_by_timestamp")

    def _times(self, one: int | None, name: str) -> int | Offsets | None:
        text = getattr(self, name)
        return parse_offsets(text, java_key(name)) if text else one

    @property
    def max_trigger_delay_ms(self) -> int:
        """`max_trigger_delay` in ms."""
        match = _DURATION.fullmatch(self.max_trigger_delay.strip())
        if match is None:
            raise ConfigError("maxTriggerDelay", self.max_trigger_delay, "a time such as 15m, 30s or 500ms")
        return int(match[1]) * _UNITS_MS[match[2]]


@frozen(kw_only=True)
class WriteOptions(ConnectOptions):
    """Options of a write."""

    topic: str = setting("", help="The topic of rows that have none in a column `topic`")
    producer_group: str = setting(DEFAULT_GROUP, help="The producer group")
    send_batch_bytes: int = setting(
        512 * KIB,
        help="Messages are sent in batches of up to so many bytes; below the broker's maxMessageSize",
        unit="bytes",
        validator=between(1, 4 * MIB),
    )
    sends_in_flight: int = setting(
        8, help="Batches of one task that wait for their acknowledgement", validator=between(1, 256)
    )
    send_timeout_ms: int = setting(
        10_000, help="One batch, with its retries", unit="ms", validator=at_least(1)
    )
    retries: int = setting(3, help="Further attempts after the first", validator=between(0, 100))
    rate: int = setting(
        0, help="At most so many messages a second, each task; 0: no limit", validator=at_least(0)
    )
    require_send_ok: bool = setting(
        False, help="Fail also when it is stored, but not flushed or copied to a slave in time"
    )
    run_id: str = setting(
        "", help="First part of the rows' keys; default: the query's id, in a batch a random one"
    )
    max_message_bytes: int = setting(
        4 * MIB,
        help="The longest body of a row; the brokers' maxMessageSize",
        unit="bytes",
        validator=at_least(1),
    )
    on_bad_row: str = setting(
        "fail",
        help="A row that cannot be a message, as its body is null, empty or longer than `maxMessageBytes`:"
        " `fail`, and name its topic, key and reason; `skip` it, with a warning; `dlq`: write a letter with"
        " the begin of its body and the reason to the dead letter topic of `deadLetterGroup`, and go on",
        validator=one_of("fail", "skip", "dlq"),
    )
    dead_letter_group: str = setting(
        "", help="The group of the dead letter topic `%DLQ%<group>`; default: `producerGroup`"
    )
    write_name: str = setting(
        "",
        help="A name of this write among those of a foreachBatch that have the same topic and columns,"
        " and run side by side; writes one after another are told apart by themselves",
    )
    dedupe_key: str = setting(
        "", help="The column that is the rows' own key; default: `rowKey`, if there is one"
    )
    exactly_once: str = setting(
        "auto",
        help="Have brokers store a row once though its task runs again: `true`; `auto`, where they can (their"
        " `idempotentSendKeepTime`); `false`",
        validator=one_of("auto", "true", "false"),
    )


@frozen(kw_only=True)
class StoreOptions:
    """Options of a read of a store's files. Made by `store_options`."""

    path: str = setting("", help="The folder of a store, or the commitlog folder in it; required")
    topic: str = setting("", help="Topics, separated by commas; empty: all")
    via: str = setting(
        "commitlog",
        help="Find records by the `commitlog`, or by the `consumequeue` of each topic that is named",
        validator=one_of("commitlog", "consumequeue"),
    )
    topic_limits: bool = setting(
        True, help="Leave out the messages that their topic's own limits gave up, as its broker does"
    )
    broker_name: str = setting("", help="The value of the column `brokerName`; files do not tell it")
    verify_crc: bool = setting(False, help="Compare each body with its CRC")
    decompress: bool = setting(True, help="Decompress bodies")
    on_corrupt: str = setting(
        "fail",
        help="What is no whole record: `fail`; `skip`: log it and go on; `report`: and give a row for it",
        validator=one_of("fail", "skip", "report"),
    )
    chunk_bytes: int | None = setting(
        None,
        help="The part of a file that a task reads; default: an eighth of the log, 64 to 256 MiB",
        unit="bytes",
        validator=optional(at_least(1)),
    )
    batch_rows: int = setting(16_384, help="Rows of an Arrow batch, at most", validator=at_least(1))
    batch_bytes: int = setting(
        8 * MIB, help="Bytes of its bodies, unless one is longer", unit="bytes", validator=at_least(1)
    )
    pushdown: bool = setting(
        False, help="Read only what filters may let through; see docs/spark.md for what Spark then needs"
    )

    @property
    def topics(self) -> tuple[str, ...]:
        """The named topics; empty for all."""
        return names_in(self.topic)

    @property
    def may_be_null(self) -> bool:
        """True if any column may be null: reports of damage have few values."""
        return self.on_corrupt == "report"


def read_options(given: Mapping[str, str], *, streaming: bool) -> ReadOptions:
    """Check the options of a read. Raises ConfigError."""
    options = load_options(ReadOptions, {name: _as_ms(name, text) for name, text in given.items()})
    _check_connection(options)
    _check_selection(options)
    _check_range(options, streaming)
    if options.filter and options.filter_sql:
        raise ConfigError("filterSql", options.filter_sql, "only one of filter and filterSql")
    if options.is_filtered and not options.filter_sql and not options.tags:
        raise ConfigError("filter", options.filter, "'*', or tags such as 'paid || refunded'")
    _ = options.max_trigger_delay_ms  # raises for an invalid time
    return options


def _as_ms(name: str, text: str) -> str:
    """A time as ms since 1970, from ISO 8601 (UTC without a zone); any other text unchanged."""
    if name.lower() not in ("startingtimestamp", "endingtimestamp") or text.strip().isdigit():
        return text
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        return text
    return str(round((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1000))


def columns(given: Mapping[str, str]) -> tuple[str, ...] | None:
    """The columns that the options choose; None for all. For a schema that Spark reads before the options are
    checked. Raises ConfigError for an empty list."""
    text = {key.lower(): value for key, value in given.items()}.get("columns")
    if text is not None and not names_in(text):
        raise ConfigError("columns", text, "columns, separated by commas")
    return names_in(text) if text is not None else None


def null_columns(given: Mapping[str, str]) -> frozenset[str]:
    """See `ReadOptions.null_columns`: for a schema that Spark reads before the options are checked."""
    values = {key.lower(): value for key, value in given.items()}
    return ReadOptions(on_corrupt="null").null_columns if values.get("oncorrupt") == "null" else frozenset()


def write_options(given: Mapping[str, str]) -> WriteOptions:
    """Check the options of a write. Raises ConfigError."""
    options = load_options(WriteOptions, given)
    _check_connection(options)
    if options.topic:
        validate_topic(options.topic)
    if "/" in options.run_id or not options.run_id.isprintable():
        raise ConfigError("runId", options.run_id, "printable text without /")
    if options.exactly_once == "true" and not options.required_brokers:
        expected = "the brokers that shall have the rows: which one gets a row rests on their names"
        raise ConfigError("requireBrokers", "", f"{expected} (exactlyOnce=true)")
    validate_group(options.producer_group)
    if options.dead_letter_group:
        validate_group(options.dead_letter_group)
    return options


def store_options(given: Mapping[str, str]) -> StoreOptions:
    """Check the options of a read of a store's files. Raises ConfigError."""
    words = {name: text.lower() if name.lower() in _STORE_WORDS else text for name, text in given.items()}
    options = load_options(StoreOptions, words, "rmqstore")
    lacking: tuple[str, str] | None = None
    if not options.path:
        lacking = "path", "the folder of a store: .load('/path/of/store')"
    elif options.topic and not options.topics:
        lacking = "topic", "at least one topic"
    elif options.via == "consumequeue" and not options.topics:
        lacking = "topic", "the topics to read by their consume queues"
    if lacking is not None:
        raise ConfigError(lacking[0], "", lacking[1], "an option of rmqstore")
    return options


def _check_connection(options: ConnectOptions) -> None:
    if not parse_addresses(options.name_server, "nameServer"):
        raise ConfigError("nameServer", "", "name servers as host:port;host:port")
    if options.secret_key and options.secret_key_file:
        raise ConfigError("secretKeyFile", options.secret_key_file, "only one of secretKey and secretKeyFile")
    if bool(options.access_key) != bool(options.secret_key or options.secret_key_file):
        raise ConfigError("accessKey", options.access_key, "accessKey and secretKey (or secretKeyFile)")
    if not options.tls and (options.tls_ca or options.tls_cert or options.tls_key or options.tls_insecure):
        raise ConfigError("tls", "false", "true, since other TLS options are given")


def _check_selection(options: ReadOptions) -> None:
    given = [name for name in ("topic", "topic_pattern", "assign") if getattr(options, name)]
    if len(given) != 1:
        shown = ", ".join(java_key(name) for name in given) or "none"
        raise ConfigError("topic, topicPattern or assign", shown, "exactly one of them")
    for topic in options.topics:
        validate_topic(topic)
    if not options.topic_pattern and not options.topics:
        raise ConfigError("topic", options.topic, "at least one topic")
    if 0 < options.max_partitions < options.min_partitions:
        raise ConfigError(
            "maxPartitions", options.max_partitions, f"minPartitions ({options.min_partitions}) at least"
        )
    try:
        re.compile(options.topic_pattern)
    except re.error as error:
        expected = f"a regular expression ({error})"
        raise ConfigError("topicPattern", options.topic_pattern, expected) from None


def _check_range(options: ReadOptions, streaming: bool) -> None:
    if options.starting_offsets and options.starting_timestamp is not None:
        raise ConfigError("startingTimestamp", options.starting_timestamp, "no startingOffsets beside it")
    if options.ending_offsets and options.ending_timestamp is not None:
        raise ConfigError("endingTimestamp", options.ending_timestamp, "no endingOffsets beside it")
    for edge in ("starting", "ending"):
        by_queue = getattr(options, f"{edge}_offsets_by_timestamp")
        others = getattr(options, f"{edge}_offsets"), getattr(options, f"{edge}_timestamp")
        if by_queue and others != ("", None):
            expected = f"no {edge}Offsets or {edge}Timestamp beside it"
            raise ConfigError(f"{edge}OffsetsByTimestamp", by_queue[:200], expected)
    first, last = options.starting_timestamp, options.ending_timestamp
    if first is not None and last is not None and first > last:
        raise ConfigError("endingTimestamp", last, f"a time from startingTimestamp ({first}) on")
    if options.group_id:
        validate_group(options.group_id)
    start = starting(options, streaming=streaming)
    if start == "group" and not options.group_id:
        raise ConfigError("startingOffsets", start, "a groupId beside it, whose offsets these are")
    if streaming:
        _check_stream(options, start)
        return
    if start == LATEST or (isinstance(start, dict) and LATEST in start.values()):
        raise ConfigError("startingOffsets", options.starting_offsets, "no latest: a batch ends there")
    end = ending(options)
    if isinstance(end, dict) and EARLIEST in end.values():
        raise ConfigError("endingOffsets", options.ending_offsets, "no earliest (-2): a batch begins there")
    for name in _STREAM_ONLY:
        if getattr(options, name):
            raise ConfigError(java_key(name), getattr(options, name), "a stream: a batch has no triggers")


def _check_stream(options: ReadOptions, start: str | int | Offsets) -> None:
    if options.pushdown:
        raise ConfigError("pushdown", "true", "false: Spark has filters for the readers of batches only")
    if 0 < options.max_offsets_per_trigger < options.min_offsets_per_trigger:
        most = options.max_offsets_per_trigger
        raise ConfigError(
            "minOffsetsPerTrigger", options.min_offsets_per_trigger, f"at most {most}, the maximum"
        )
    if options.ending_offsets or options.ending_times is not None:
        expected = "none: a stream has no end; use trigger(availableNow=True) or a batch"
        raise ConfigError("endingOffsets", options.ending_offsets or options.ending_times, expected)
    moves = start == LATEST or options.starting_times is not None
    moves = moves or (isinstance(start, dict) and LATEST in start.values())
    if moves and not (options.state_location or options.group_id):
        raise ConfigError(
            "startingOffsets" if options.starting_times is None else "startingTimestamp",
            options.starting_times or options.starting_offsets or "latest",
            "stateLocation or groupId beside it, where the first offsets are kept: a crash in the first batch"
            " would find others, and messages between them would never be read",
        )


def starting(options: ReadOptions, *, streaming: bool) -> str | int | Offsets:
    """The begin of a read: EARLIEST, LATEST, "group", or offsets (some of them EARLIEST or LATEST)."""
    text = options.starting_offsets
    if options.starting_times is not None:
        return "timestamp"
    if not text:
        return LATEST if streaming else EARLIEST
    if text.lower() == "group":
        return "group"
    return _bound("startingOffsets", text)


def ending(options: ReadOptions) -> str | int | Offsets:
    """The end of a batch: LATEST, "timestamp", or offsets (some of them LATEST)."""
    if options.ending_times is not None:
        return "timestamp"
    found = _bound("endingOffsets", options.ending_offsets or "latest")
    if found == EARLIEST:
        raise ConfigError("endingOffsets", options.ending_offsets, "latest or JSON")
    return found


def _bound(key: str, text: str) -> int | Offsets:
    named = {"earliest": EARLIEST, "latest": LATEST}.get(text.lower())
    if named is not None:
        return named
    if not text.startswith("{"):
        raise ConfigError(key, text, 'earliest, latest, or JSON such as {"topic":{"broker-a":{"0":12}}}')
    return parse_offsets(text, key, specials=True)


def _assigned(text: str) -> tuple[MessageQueue, ...]:
    expected = 'JSON such as {"topic":{"broker-a":[0,1]}}'
    try:
        tree = json.loads(text)
        found = [
            MessageQueue(topic, broker, queue_id)
            for topic, brokers in tree.items()
            for broker, queue_ids in brokers.items()
            for queue_id in queue_ids
        ]
    except (ValueError, AttributeError, TypeError):
        raise ConfigError("assign", text, expected) from None
    if not found or any(type(queue.queue_id) is not int or queue.queue_id < 0 for queue in found):
        raise ConfigError("assign", text, expected)
    return tuple(dict.fromkeys(found))
