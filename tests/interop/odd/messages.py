"""Odd but legal messages, and some beyond the limits: what a sender may put into a request by hand."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from typing import Any

from attrs import frozen

SEND, SEND_V2, SEND_BATCH = 10, 310, 320
SHORT = dict(
    zip(
        (
            *("producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums", "queueId", "sysFlag"),
            *("bornTimestamp", "flag", "properties", "reconsumeTimes", "unitMode", "maxReconsumeTimes"),
            *("batch", "bname"),
        ),
        "abcdefghijklmn",
        strict=True,
    )
)
"""The names of SEND_MESSAGE_V2."""
MIB = 1 << 20
RESERVED = (
    *("KEYS", "TAGS", "WAIT", "RETRY_TOPIC", "REAL_TOPIC", "REAL_QID", "PGROUP", "MIN_OFFSET", "MAX_OFFSET"),
    *("BUYER_ID", "ORIGIN_MESSAGE_ID", "TRANSFER_FLAG", "CORRECTION_FLAG", "MQ2_FLAG", "RECONSUME_TIME"),
    *("MSG_REGION", "TRACE_ON", "UNIQ_KEY", "EXTEND_UNIQ_INFO", "MAX_RECONSUME_TIMES", "CONSUME_START_TIME"),
    *("INSTANCE_ID", "CORRELATION_ID", "REPLY_TO_CLIENT", "TTL", "ARRIVE_TIME", "PUSH_REPLY_TIME", "CLUSTER"),
    *(
        "MSG_TYPE",
        "INNER_MULTI_DISPATCH",
        "INNER_MULTI_QUEUE_OFFSET",
        "INNER_NUM",
        "DUP_INFO",
        "DLQ_ORIGIN_TOPIC",
    ),
    *(
        "TRAN_PREPARED_QUEUE_OFFSET",
        "TRANSACTION_CHECK_TIMES",
        "CHECK_IMMUNITY_TIME_IN_SECONDS",
        "SHARDING_KEY",
    ),
    *("__transactionId__", "TRAN_MSG", "PUT_ORIGIN_MESSAGE", "SCHEDULE_LEVEL", "_SYS_PROCESS_", "DELAY"),
)


@frozen
class Odd:
    """A request to send: its name for reports, code, fields and body. `binary`: the header's form."""

    name: str
    code: int
    fields: dict[str, Any]
    body: bytes | None
    binary: bool = False


def text_of(properties: dict[str, str]) -> str:
    """Properties as RocketMQ writes them."""
    return "".join(f"{name}\x01{value}\x02" for name, value in properties.items())


def odd(name: str, topic: str, body: bytes | None = b"body", *, code: int = SEND_V2, **given: Any) -> Odd:
    """A request; `given` are fields by their long names, None leaves one out; `binary` is the form."""
    binary = bool(given.pop("binary", False))
    fields: dict[str, Any] = {
        "producerGroup": "odd",
        "topic": topic,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": 4,
        "queueId": 0,
        "sysFlag": 0,
        "bornTimestamp": 1_700_000_000_000,
        "flag": 0,
        "properties": "",
        "reconsumeTimes": 0,
        "unitMode": False,
        "batch": False,
        **given,
    }
    fields = {key: value for key, value in fields.items() if value is not None}
    if code != SEND:
        fields = {SHORT.get(key, key): value for key, value in fields.items()}
    return Odd(name, code, fields, body, binary)


def batch(*messages: tuple[bytes, str], flag: int = 0) -> bytes:
    """The body of SEND_BATCH_MESSAGE."""
    whole = b""
    for body, properties in messages:
        text = properties.encode()
        rest = struct.pack(">iiii", 0, 0, flag, len(body)) + body + struct.pack(">h", len(text)) + text
        whole += struct.pack(">i", len(rest) + 4) + rest
    return whole


def sized(count: int, filler: str = "x") -> str:
    """Properties of exactly so many bytes of UTF-8, if the filler's bytes allow it."""
    room = count - len("k\x01\x02")
    return text_of({"k": filler * (room // len(filler.encode()))})


def fixed(topic: str) -> Iterator[Odd]:
    """Each limit, at it and beyond it."""
    for count in (3, 255, 256, 32_000, 32_766, 32_767, 32_768, 40_000):
        for binary in (False, True):
            yield odd(
                f"{count} bytes of properties, binary {binary}", topic, properties=sized(count), binary=binary
            )
    yield odd("10,900 Chinese characters", topic, properties=sized(32_700, "\u4e2d"))
    yield odd("20,000 Chinese characters", topic, properties=text_of({"k": "\u4e2d" * 20_000}))
    yield odd("8,000 emoji", topic, properties=sized(32_000, "\U0001f600"))
    yield odd("4,500 small properties", topic, properties="".join(f"{n:04}\x01a\x02" for n in range(4500)))
    yield odd("11,000 control characters", topic, properties=text_of({"k": "\x03" * 11_000}))
    yield odd("32,000 control characters", topic, properties=text_of({"k": "\x1f" * 32_000}))
    for name, text in (
        ("no properties", None),
        ("empty properties", ""),
        ("a name alone", "name"),
        ("a name without an end", "name\x01value"),
        ("an empty value", "name\x01\x02"),
        ("an empty name", "\x01value\x02"),
        ("separators alone", "\x02\x02\x02"),
        ("a value with a separator", "a\x01b\x01c\x02"),
        ("a name twice", "a\x01b\x02a\x01c\x02"),
        ("a NUL", "a\x01\x00\x02"),
        ("line ends and tabs", "a\x01\r\n\t\x02"),
        ("keys that are no ASCII", "KEYS\x01\u043a\u043b\u044e\u0447 \u30ad\u30fc\x02TAGS\x01\u00e9\x02"),
        ("many keys", "KEYS\x01" + " ".join(f"k{n}" for n in range(500)) + "\x02"),
        ("blanks as keys", "KEYS\x01   \x02"),
        ("a wait that is no boolean", "WAIT\x01perhaps\x02"),
        ("level 3", "DELAY\x013\x02"),
        ("level 0", "DELAY\x010\x02"),
        ("level -1", "DELAY\x01-1\x02"),
        ("level 99", "DELAY\x0199\x02"),
        ("level that is no number", "DELAY\x01soon\x02"),
        ("a half message", "TRAN_MSG\x01true\x02PGROUP\x01odd\x02"),
        ("a lone surrogate", "a\x01\ud800\x02"),
    ):
        yield odd(name, topic, properties=text)
    for name in RESERVED:
        for value in ("1", "true", "x"):
            yield odd(f"{name}={value}", topic, properties=text_of({name: value}))
    for body in (None, b"", b"\x00", b"x" * (4 * MIB - 1), b"x" * (4 * MIB), b"x" * (4 * MIB + 1)):
        yield odd(f"a body of {'no' if body is None else len(body)} bytes", topic, body)
        yield odd(
            f"a body of {'no' if body is None else len(body)} bytes, long names", topic, body, code=SEND
        )
    yield odd("4 MiB and long properties", topic, b"x" * (4 * MIB), properties=sized(32_767))
    for flag in (1, -1, 2**31 - 1, -(2**31)):
        yield odd(f"flag {flag}", topic, flag=flag)
    for flag in (1, 2, 4, 8, 12, 64, 128, 256, 1 << 20, 1 << 30):
        yield odd(f"system flag {flag}", topic, sysFlag=flag)
    for queue in (-1, 3, 4, 8, 99, -2, 2**31 - 1):
        yield odd(f"queue {queue}", topic, queueId=queue)
    for born in (0, -1, 1, 2**63 - 1, -(2**63)):
        yield odd(f"born at {born}", topic, bornTimestamp=born)
    for times in (None, 1, 16, 17, -1, 2**31 - 1):
        yield odd(f"consumed {times} times", topic, reconsumeTimes=times)
    yield odd("unit mode", topic, unitMode=True)
    yield odd("one message called a batch", topic, batch=True)
    yield odd("no group", topic, producerGroup="")
    yield odd("a long group", topic, producerGroup="g" * 300)
    yield odd("a group that is no ASCII", topic, producerGroup="\u30b0")
    yield odd("no default topic", topic, defaultTopic="")
    yield odd("a broker's name", topic, bname="somebody")
    yield odd("a field that nobody knows", topic, unknown="x")
    for name in (
        "x" * 127,
        "x" * 128,
        "a%b",
        "a-b_c|d",
        "a b",
        "a.b",
        "",
        "\u4e2d",
        "SELF_TEST_TOPIC",
        "TBW102",
    ):
        yield odd(f"topic {name[:20]!r} of {len(name)}", name)
    for name in ("%RETRY%odd-group", "%DLQ%odd-group", "RMQ_SYS_TRACE_TOPIC", "OFFSET_MOVED_EVENT"):
        yield odd(f"topic {name}", name)
    for name in ("SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"):
        yield odd(f"topic {name}", name)
    for queues in (0, 1, -1, 1000):
        yield odd(f"{queues} queues of a new topic", f"new-{queues % 7}", defaultTopicQueueNums=queues)
    for count in (1, 2, 100, 1000):
        body = batch(*[(b"%d" % number, f"KEYS\x01k{number}\x02") for number in range(count)])
        yield odd(f"a batch of {count}", topic, body, code=SEND_BATCH, batch=True)
    yield odd("a batch of empty bodies", topic, batch((b"", ""), (b"", "")), code=SEND_BATCH, batch=True)
    yield odd("a batch of nothing", topic, b"", code=SEND_BATCH, batch=True)
    yield odd("a batch with flags", topic, batch((b"a", ""), flag=-5), code=SEND_BATCH, batch=True)
    big = batch((b"x" * (2 * MIB), ""), (b"y" * (2 * MIB - 100), ""))
    yield odd("a batch of nearly 4 MiB", topic, big, code=SEND_BATCH, batch=True)
    yield odd("a batch whose mark is missing", topic, batch((b"a", "")), code=SEND_BATCH, batch=False)


ALPHABETS = (
    "abcXYZ019",
    "\u00e9\u00df\u0130",
    "\u4e2d\u6587\uff21",
    "\U0001f600\U0001d11e",
    "\x03\x1b\x7f\x85\u2028",
)


def drawn(topic: str, seed: int, count: int) -> Iterator[Odd]:
    """Messages by chance."""
    chance = random.Random(seed)

    def word(longest: int) -> str:
        letters = chance.choice(ALPHABETS)
        return "".join(chance.choices(letters, k=chance.randrange(longest)))

    for number in range(count):
        properties = {
            word(12) + str(index): word(chance.choice((3, 40, 900))) for index in range(chance.randrange(12))
        }
        if chance.random() < 0.3:
            properties |= {"KEYS": word(60), "TAGS": word(20)}
        yield odd(
            f"drawn {seed}/{number}",
            topic,
            chance.randbytes(chance.choice((1, 10, 300, 5000, 70_000))),
            code=chance.choice((SEND, SEND_V2)),
            properties=text_of(properties),
            flag=chance.randrange(-(2**31), 2**31),
            bornTimestamp=chance.randrange(2**42),
            reconsumeTimes=chance.choice((0, 0, 3, 16)),
            queueId=chance.choice((0, 1, 2, 3)),
            binary=chance.random() < 0.5,
        )
