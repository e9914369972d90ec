"""Refused arguments of calls: before any request, a TypeError or a ValueError names the argument, its value
and the allowed values."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import attrs
import pytest

import rmq
from rmq.client import blocking
from rmq.client.config import ClientConfig
from rmq.client.produce.outgoing import pack
from rmq.errors import ConfigError, InvalidMessage, InvalidMessageType, InvalidType, RmqError
from rmq.message import Message, MessageQueue
from rmq.protocol.codes import RequestCode
from rmq.testing.cluster import Cluster

from ..conftest import Play
from ..consume.consuming import fill
from ..world import World

MESSAGE = Message("T", b"x")
QUEUE = MessageQueue("T", "a", 0)
BOTH = ("sharding_key", "'k'", "either sharding_key or queue")


def explains(error: BaseException, argument: str, given: str, allowed: str) -> None:
    text = str(error)
    assert isinstance(error, RmqError)
    missing = [word for word in (argument, given, allowed) if word not in text]
    assert not missing, text
    assert not error.retriable


@pytest.mark.parametrize(
    ("fields", "given", "allowed"),
    [
        ({"tags": ["a"]}, "['a']", "one tag as text"),
        ({"tags": 5}, "5", "one tag as text"),
        ({"keys": 5}, "5", "a list of texts"),
        ({"keys": [5]}, "[5]", "a list of texts"),
        ({"properties": [("a", "b")]}, "[('a', 'b')]", "a dict of texts"),
        ({"properties": {"a": 5}}, "{'a': 5}", "a dict of texts"),
        ({"properties": {5: "a"}}, "{5: 'a'}", "a dict of texts"),
        ({"properties": {"a": None}}, "{'a': None}", "a dict of texts"),
        ({"properties": None}, "None", "a dict of texts"),
        ({"delay_level": "3"}, "'3'", "an int"),
        ({"delay_level": True}, "True", "an int"),
        ({"delay_ms": 1.5}, "1.5", "an int"),
        ({"deliver_at_ms": "now"}, "'now'", "an int"),
        ({"flag": None}, "None", "an int"),
        ({"wait_store": "yes"}, "'yes'", "True or False"),
        ({"body": "text"}, "'text'", "bytes"),
        ({"body": None}, "None", "bytes"),
        ({"topic": b"T"}, "b'T'", "text"),
    ],
)
def test_a_field_of_a_message_has_its_type(fields: dict[str, Any], given: str, allowed: str) -> None:
    values: dict[str, Any] = {"topic": "T", "body": b"x", **fields}
    with pytest.raises(InvalidMessageType) as made:
        Message(**values)
    assert isinstance(made.value, TypeError)
    explains(made.value, *fields, given, allowed)


@pytest.mark.parametrize("keys", [["a b"], ["a\tb"], [""], [" a"], ["good", "b\u3000c"]])
def test_keys_have_no_blanks(keys: list[str]) -> None:
    with pytest.raises(InvalidMessage, match="without blanks") as made:
        Message("T", b"x", keys=keys)
    assert isinstance(made.value, ValueError)
    explains(made.value, "keys", repr(keys[-1]), "without blanks")


def test_one_text_is_taken_apart_at_its_blanks() -> None:
    assert Message("T", b"x", keys="a b").keys == ("a", "b")


@pytest.mark.parametrize("field", ["tags", "delay_level", "properties"])
def test_what_is_set_later_is_refused_when_it_is_sent(field: str) -> None:
    message = Message("T", b"x")
    wrong: Any = {"tags": 5, "delay_level": "9", "properties": {"a": 5}}[field]
    setattr(message, field, wrong)
    with pytest.raises(TypeError, match=field):
        pack(message, "ID", ClientConfig())


def test_a_level_that_brokers_do_not_have_is_refused() -> None:
    pack(Message("T", b"x", delay_level=18), "ID", ClientConfig())
    with pytest.raises(InvalidMessage, match="delay_level = 99: expected at most 18"):
        pack(Message("T", b"x", delay_level=99), "ID", ClientConfig())
    pack(Message("T", b"x", delay_level=99), "ID", ClientConfig(max_delay_level=99))


def test_buffers_and_subclasses_are_taken() -> None:
    class Name(str):
        __slots__ = ()

    for body in (bytearray(b"x"), memoryview(b"x")):
        message = Message(Name("T"), body, properties={Name("a"): Name("b")})  # type: ignore[arg-type]
        assert pack(message, "ID", ClientConfig()).body == b"x"


Call = Callable[[rmq.Producer], Awaitable[object]]


@pytest.mark.parametrize(
    ("call", "argument", "given", "allowed"),
    [
        (lambda producer: producer.send("text"), "message", "'text'", "rmq.Message"),
        (lambda producer: producer.send(MESSAGE, queue=0), "queue", "0", "rmq.MessageQueue"),
        (lambda producer: producer.send(MESSAGE, sharding_key=7), "sharding_key", "7", "text"),
        (lambda producer: producer.send_oneway(MESSAGE, sharding_key=7), "sharding_key", "7", "text"),
        (lambda producer: producer.send_oneway(MESSAGE, queue="T"), "queue", "'T'", "rmq.MessageQueue"),
        (lambda producer: producer.send(MESSAGE, queue=QUEUE, sharding_key="k"), *BOTH),
        (lambda producer: producer.send_batch([MESSAGE], queue=QUEUE, sharding_key="k"), *BOTH),
        (lambda producer: producer.send_oneway(MESSAGE, queue=QUEUE, sharding_key="k"), *BOTH),
        (lambda producer: producer.request(MESSAGE, queue=QUEUE, sharding_key="k"), *BOTH),
        (lambda producer: producer.send_batch(MESSAGE), "messages", "Message", "a list of rmq.Message"),
        (lambda producer: producer.send_batch([b"x"]), "messages", "b'x'", "a list of rmq.Message"),
        (lambda producer: producer.request(MESSAGE, "3"), "timeout", "'3'", "a number"),
        (lambda producer: producer.request(MESSAGE, float("nan")), "timeout", "nan", "a number"),
        (lambda producer: producer.request(b"x"), "message", "b'x'", "rmq.Message"),
        (lambda producer: producer.reply(b"x", b"y"), "message", "b'x'", "as delivered"),
        (lambda producer: producer.recall(5), "handle", "5", "recall_handle"),
        (lambda producer: producer.queues(5), "topic", "5", "as text"),
    ],
)
def test_a_producer_names_what_it_does_not_take(
    call: Call, argument: str, given: str, allowed: str, both: Play, cluster: Cluster
) -> None:
    async def scenario(setting: World) -> None:
        async with setting.connect() as client, client.producer("p") as producer:
            with pytest.raises((TypeError, ValueError)) as raised:
                await call(producer)
            explains(raised.value, argument, given, allowed)
            assert cluster["a"].count(RequestCode.SEND_MESSAGE_V2) == 0

    both(scenario, cluster)


@pytest.mark.parametrize(
    ("arguments", "options", "argument", "given", "allowed"),
    [
        ((5, {"T": "*"}), {}, "group", "5", "as text"),
        (("g", ["T"]), {}, "topics", "['T']", "a dict"),
        (("g", "T"), {}, "topics", "'T'", "a dict"),
        (("g", {"T": 5}), {}, "subscription to T", "5", "tags such as"),
        (("g", {5: "*"}), {}, "topic", "5", "as text"),
        (("g", {}), {}, "topics", "{}", "at least one topic"),
        (("g", {"T": "*"}), {"consume_from": "start"}, "consume_from", "'start'", "'first', 'last'"),
        (("g", {"T": "*"}), {"consume_from": 1.5}, "consume_from", "1.5", "an int"),
        (("g", {"T": "*"}), {"consume_from": -1}, "consume_from", "-1", "at least 0"),
        (("g", {"T": "*"}), {"on_error": "ignore"}, "on_error", "'ignore'", "'retry' or 'raise'"),
        (("g", {"T": "*"}), {"strategy": "averagely"}, "strategy", "'averagely'", "a function"),
        (
            ("g", {"T": "*"}),
            {"on_assignment": lambda: None},
            "on_assignment",
            "lambda",
            "too many positional",
        ),
        (("g", {"T": "*"}), {"ordered": "yes"}, "ordered", "'yes'", "True or False"),
        (("g", {"T": "*"}), {"max_reconsume_times": "3"}, "max_reconsume_times", "'3'", "an int"),
        (("g", {"T": "*"}), {"max_reconsume_times": -1}, "max_reconsume_times", "-1", "at least 0"),
    ],
)
def test_a_consumer_names_what_it_does_not_take(
    arguments: tuple[Any, ...],
    options: dict[str, Any],
    argument: str,
    given: str,
    allowed: str,
    both: Play,
    cluster: Cluster,
) -> None:
    async def scenario(setting: World) -> None:
        async with setting.connect(namespace="ns") as client:
            with pytest.raises((TypeError, ValueError)) as raised:
                client.consumer(*arguments, **options)
        explains(raised.value, argument, given, allowed)

    both(scenario, cluster)


@pytest.mark.parametrize(
    ("call", "argument", "allowed"),
    [
        (lambda consumer: consumer.run("handler"), "handler", "a function of a message"),
        (lambda consumer: consumer.run(lambda message, more: None), "handler", "missing a required argument"),
        (lambda consumer: consumer.run(lambda: None), "handler", "too many positional arguments"),
        (lambda consumer: consumer.run_batches(lambda: None), "handler", "a function of a list of messages"),
        (lambda consumer: consumer.run(print, concurrency=0), "concurrency", "at least 1"),
        (lambda consumer: consumer.run(print, concurrency="4"), "concurrency", "an int"),
        (lambda consumer: consumer.run_batches(None), "handler", "a list of messages"),
        (lambda consumer: consumer.run_batches(print, batch=0), "batch", "at least 1"),
    ],
)
def test_a_handler_is_a_function(
    call: Callable[[rmq.Consumer], Awaitable[None]], argument: str, allowed: str, both: Play, cluster: Cluster
) -> None:
    async def scenario(setting: World) -> None:
        async with setting.connect() as client, client.consumer("g", {"T": "*"}) as consumer:
            with pytest.raises((TypeError, ValueError)) as raised:
                await call(consumer)
        explains(raised.value, argument, "", allowed)

    both(scenario, cluster)


@pytest.mark.parametrize(
    ("call", "argument", "allowed"),
    [
        (lambda puller: puller.pull("T"), "queue", "rmq.MessageQueue"),
        (lambda puller: puller.pull(QUEUE, "5"), "offset", "an int"),
        (lambda puller: puller.pull(QUEUE, max_messages=0), "max_messages", "at least 1"),
        (lambda puller: puller.pull(QUEUE, wait="5"), "wait", "a number"),
        (lambda puller: puller.pull(QUEUE, 0, expression=5), "subscription to T", "tags such as"),
        (lambda puller: puller.commit(QUEUE, -5), "offset", "at least 0"),
        (lambda puller: puller.search_offset(QUEUE, "now"), "timestamp_ms", "an int"),
        (lambda puller: puller.min_offset(0), "queue", "rmq.MessageQueue"),
        (lambda puller: puller.assign(["T"]), "queues", "rmq.MessageQueue"),
        (lambda puller: puller.assign(5), "queues", "rmq.MessageQueue"),
        (lambda puller: puller.subscribe(["T"]), "topics", "a dict"),
        (lambda puller: puller.poll(0), "max_messages", "at least 1"),
        (lambda puller: puller.message_queues(5), "topic", "as text"),
    ],
)
def test_a_pull_consumer_names_what_it_does_not_take(
    call: Callable[[rmq.PullConsumer], Awaitable[object]],
    argument: str,
    allowed: str,
    both: Play,
    cluster: Cluster,
) -> None:
    async def scenario(setting: World) -> None:
        async with setting.connect() as client, client.pull_consumer("g") as puller:
            with pytest.raises((TypeError, ValueError)) as raised:
                await call(puller)
            explains(raised.value, argument, "", allowed)

    both(scenario, cluster)


@pytest.mark.parametrize(
    ("namesrv", "given"),
    [
        ("http://127.0.0.1:9876", "http://"),
        ("127.0.0.1", "127.0.0.1"),
        ("a:9876;b", "'b'"),
        ("a:0", "'a:0'"),
        ("a:65536", "a:65536"),
        ("::1:9876", "::1:9876"),
        ("amqp://a:9876", "amqp"),
    ],
)
def test_what_is_no_address_of_a_name_server_is_refused_at_once(namesrv: str, given: str) -> None:
    with pytest.raises(ConfigError) as raised:
        rmq.connect(namesrv)
    assert isinstance(raised.value, ValueError)
    explains(raised.value, "namesrv", given, "host:port")


@pytest.mark.parametrize("namesrv", ["h:1", "[::1]:9876", "tls://h:1", "ws://h:1;wss://i:2", "TLS://h:1"])
def test_addresses_with_a_scheme_or_in_brackets_are_taken(namesrv: str) -> None:
    assert rmq.connect(namesrv).client_id


@pytest.mark.parametrize(
    ("arguments", "options", "argument", "allowed"),
    [
        ((5,), {}, "namesrv", "host:port"),
        (([5],), {}, "namesrv", "host:port"),
        (("h:1",), {"client_id": 5}, "client_id", "text"),
        (("h:1",), {"config": {"retry_times": 3}}, "config", "rmq.ClientConfig"),
        (("h:1",), {"credentials": ("key", "secret")}, "credentials", "rmq.Credentials"),
        (("h:1",), {"tls": True}, "tls", "rmq.TlsConfig"),
        (("h:1",), {"plugins": rmq.MessageTrace()}, "plugins", "a list of rmq.Observer"),
        (("h:1",), {"plugins": [rmq.MessageTrace]}, "plugins", "a list of rmq.Observer"),
        (("h:1",), {"on_event": 5}, "on_event", "a function of an event"),
        (("h:1",), {"network": 5}, "network", "the methods dial and listen"),
        (("h:1",), {"network": "tcp"}, "network", "the methods dial and listen"),
        ((), {"context": 5}, "context", "the name of a context"),
    ],
)
@pytest.mark.parametrize("call", [rmq.connect, rmq.App, blocking.connect])
def test_connect_and_app_name_what_they_do_not_take(
    call: Callable[..., object],
    arguments: tuple[Any, ...],
    options: dict[str, Any],
    argument: str,
    allowed: str,
) -> None:
    with pytest.raises(InvalidType) as raised:
        call(*arguments, **options)
    explains(raised.value, argument, "", allowed)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("call", [rmq.connect, rmq.App, blocking.connect])
def test_connect_and_app_take_settings(call: Callable[..., object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RMQ_RETRY_TIMES", "7")
    call("h:1", send_timeout_ms=5_000, retry_times=1)
    for keyword, hint in (("send_timeot_ms", "did you mean send_timeout_ms?"), ("xyz", "it takes .*, tls,")):
        with pytest.raises(TypeError, match=f"has no {keyword}; {hint}"):
            call("h:1", **{keyword: 5})
    with pytest.raises(ConfigError) as raised:
        call("h:1", send_timeout_ms="5 s")
    explains(raised.value, "send_timeout_ms", "'5 s'", "a number")


def test_settings_replace_those_of_the_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RMQ_RETRY_TIMES", "7")
    config = rmq.ClientConfig(send_timeout_ms=1, namespace="own")
    assert rmq.connect("h:1", send_window=5).config == rmq.ClientConfig(retry_times=7, send_window=5)
    assert rmq.connect("h:1", config=config, send_window=5).config == attrs.evolve(config, send_window=5)
    assert rmq.connect("h:1", config=config, namespace="").config == attrs.evolve(config, namespace="")


@pytest.mark.parametrize(("level", "kind"), [("3", TypeError), (-2, ValueError)])
def test_a_retry_has_a_level(level: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind, match="delay_level"):
        rmq.Retry(delay_level=level)


def test_what_was_given_is_shortened() -> None:
    with pytest.raises(InvalidMessageType) as raised:
        Message("T", "x" * 100_000)  # type: ignore[arg-type]
    assert len(str(raised.value)) < 300


@pytest.mark.parametrize("name", ["delay_level", "delay_ms", "deliver_at_ms"])
def test_a_negative_time_is_named(name: str) -> None:
    with pytest.raises(InvalidMessage) as raised:
        pack(Message("T", b"x", **{name: -1}), "ID", ClientConfig())  # type: ignore[arg-type]
    explains(raised.value, name, "-1", "at least 0")


@pytest.mark.parametrize(
    ("make", "argument", "given", "allowed"),
    [
        (lambda: rmq.ClientConfig(send_timeout_ms="3s"), "send_timeout_ms", "'3s'", "a number"),  # type: ignore[arg-type]
        (lambda: rmq.ClientConfig(request_timeout_ms="3"), "request_timeout_ms", "'3'", "an int"),  # type: ignore[arg-type]
        (lambda: rmq.ClientConfig(retry_times=1.5), "retry_times", "1.5", "an int"),  # type: ignore[arg-type]
        (lambda: rmq.ClientConfig(namespace=None), "namespace", "None", "text"),  # type: ignore[arg-type]
        (lambda: rmq.ClientConfig(avoid_slow_brokers=1), "avoid_slow_brokers", "1", "True or False"),  # type: ignore[arg-type]
        (lambda: rmq.Credentials(5, "hush"), "access_key", "5", "text"),  # type: ignore[arg-type]
        (lambda: rmq.Credentials("key", b"hush"), "secret_key", "bytes", "text"),  # type: ignore[arg-type]
        (lambda: rmq.Credentials("key", None), "secret_key", "None", "text"),  # type: ignore[arg-type]
        (lambda: rmq.Credentials("key", "hush", 7), "security_token", "int", "text"),  # type: ignore[arg-type]
        (lambda: rmq.Letters(since_ms="now"), "since_ms", "'now'", "an int"),  # type: ignore[arg-type]
        (lambda: rmq.Letters(until_ms=-1), "until_ms", "-1", "at least 0"),
        (lambda: rmq.Letters(where=5), "where", "5", "a function"),  # type: ignore[arg-type]
        (lambda: rmq.Retry(5), "reason", "5", "text"),  # type: ignore[arg-type]
        (lambda: rmq.MessageTrace(5), "topic", "5", "text"),  # type: ignore[arg-type]
        (lambda: rmq.MessageQueue(5, "b", 0), "topic", "5", "text"),  # type: ignore[arg-type]
        (lambda: rmq.MessageQueue("T", None, 0), "broker_name", "None", "text"),  # type: ignore[arg-type]
        (lambda: rmq.MessageQueue("T", "b", "0"), "queue_id", "'0'", "an int"),  # type: ignore[arg-type]
        (lambda: rmq.MessageQueue("T", "b", True), "queue_id", "True", "an int"),
        (lambda: rmq.TlsConfig(tls_enable="yes"), "tls_enable", "'yes'", "True or False"),
        (lambda: rmq.TlsConfig(tls_cert_path=5), "tls_cert_path", "5", "text"),
        (lambda: rmq.TlsConfig(tls_trust_path=None), "tls_trust_path", "None", "text"),
        (lambda: rmq.TlsConfig(tls_key_password=b"hush"), "tls_key_password", "bytes", "text"),
        (lambda: rmq.TlsConfig(tls_mode="on"), "tls_mode", "'on'", "enforcing"),
        (lambda: rmq.TlsConfig(tls_mode=5), "tls_mode", "5", "enforcing"),
        (lambda: rmq.App("http://h:1"), "namesrv", "http://", "host:port"),
        (lambda: rmq.App(drain="9"), "drain", "'9'", "a number"),  # type: ignore[arg-type]
        (lambda: rmq.App(setup=5), "setup", "5", "a function"),  # type: ignore[arg-type]
    ],
)
def test_what_is_made_of_wrong_values(
    make: Callable[[], object], argument: str, given: str, allowed: str
) -> None:
    with pytest.raises((TypeError, ValueError)) as raised:
        make()
    explains(raised.value, argument, given, allowed)


def test_letters_are_letters(both: Play, cluster: Cluster) -> None:
    async def scenario(setting: World) -> None:
        async with setting.connect() as client:
            for call in (client.dead_letters, client.redrive):
                with pytest.raises(InvalidType, match="letters"):
                    await call("g", ["ID"])  # type: ignore[operator]
            with pytest.raises(InvalidType, match="message_id"):
                await client.admin.view_message(5)  # type: ignore[arg-type]
            with pytest.raises(InvalidType, match="queues"):
                await client.admin.create_topic("T", queues="8")  # type: ignore[arg-type]

    both(scenario, cluster)


async def streams(message: object) -> AsyncIterator[int]:
    yield 1


def counts(message: object) -> Iterator[int]:
    yield 1


class Streams:
    """An object whose call is a generator."""

    async def __call__(self, message: object) -> AsyncIterator[int]:
        yield 1


GENERATORS = [streams, counts, Streams(), functools.partial(streams)]


@pytest.mark.parametrize("handler", GENERATORS, ids=["async", "ordinary", "object", "partial"])
@pytest.mark.parametrize("method", ["run", "run_batches"])
def test_a_generator_is_no_handler(method: str, handler: Any, both: Play, cluster: Cluster) -> None:
    """A call runs nothing of it: each message would count as consumed."""

    async def scenario(setting: World) -> None:
        async with setting.connect() as client, client.consumer("g", {"T": "*"}) as consumer:
            with pytest.raises(rmq.InvalidType) as raised:
                await getattr(consumer, method)(handler)
        explains(raised.value, "handler", "", "without yield")

    both(scenario, cluster)


def test_a_generator_that_a_function_returns_is_a_failure(both: Play, cluster: Cluster) -> None:
    async def scenario(setting: World) -> None:
        fill(cluster, 1)
        options: Any = {"consume_from": "first", "on_error": "raise"}
        async with setting.connect() as client, client.consumer("g", {"T": "*"}, **options) as consumer:
            with pytest.raises(TypeError, match="returned a generator"):
                await consumer.run(lambda message: counts(message))

    both(scenario, cluster)


async def later(*arguments: object) -> bool:
    return True


@pytest.mark.parametrize(
    ("make", "argument"),
    [
        (lambda: rmq.connect("10.0.0.1:9876", on_event=later), "on_event"),
        (lambda: rmq.Letters(where=later), "where"),
        (lambda: rmq.SkipDuplicates(rmq.MemoryWindow(), key=later), "key"),
        (lambda: rmq.App("10.0.0.1:9876", setup=later), "setup"),
        (lambda: rmq.App("10.0.0.1:9876", setup=streams), "setup"),
    ],
)
def test_functions_whose_result_nothing_awaits_are_not_async(
    make: Callable[[], object], argument: str
) -> None:
    with pytest.raises(rmq.InvalidType) as raised:
        make()
    explains(raised.value, argument, "", "without yield" if "yield" in str(raised.value) else "not async")
