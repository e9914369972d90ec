"""Traces made at random, and their latencies reckoned row by row."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from rmq.protocol.trace import TraceBean, TraceContext, TraceMessageType, TraceType, decode, encode

START_MS = 1_795_253_354_000
GROUPS = ("billing", "mail", "stock")


def make_traces(messages: int, chance: random.Random) -> list[str]:
    """Bodies of trace messages, some contexts in each, in no order. A message gives some 3.5 rows."""
    contexts: list[TraceContext] = []
    for number in range(messages):
        contexts += _life(number, START_MS + number * 13, chance)
    chance.shuffle(contexts)
    texts = [encode(context) for context in contexts]
    return ["".join(texts[at : at + 7]) for at in range(0, len(texts), 7)]


def _life(number: int, at: int, chance: random.Random) -> list[TraceContext]:
    topic, one = f"Topic{number % 3}", f"ID{number:08}"
    cost = int(chance.lognormvariate(1.5, 1))
    kind = TraceMessageType.DELAY if chance.random() < 0.05 else TraceMessageType.NORMAL
    bean = TraceBean(topic, one, keys="k", message_type=kind, body_length=9)
    good = chance.random() > 0.02
    made = [TraceContext(TraceType.PUB, (bean,), at, "R", f"producer{number % 2}", cost, good)]
    if chance.random() < 0.2:
        made.append(TraceContext(TraceType.STORE, (bean,), at + 1, "R", "", 1))
    if not good or chance.random() < 0.1:
        return made
    for group in chance.sample(GROUPS, chance.randrange(3)):
        got = at + cost + int(chance.expovariate(0.05))
        for time in range(1 + (chance.random() < 0.05)):
            request = f"{one}{group}{time}"
            worked = int(chance.expovariate(0.1))
            what = (TraceBean(message_id=one, retry_times=time, keys="k"),)
            begun = got + time * 10_000
            made.append(TraceContext(TraceType.SUB_BEFORE, what, begun, "R", group, request_id=request))
            after = {"cost_ms": worked, "success": chance.random() > 0.1, "request_id": request}
            made.append(TraceContext(TraceType.SUB_AFTER, what, begun + worked, group=group, **after))
    return made


def table_of(bodies: Sequence[str]) -> pa.Table:
    return pa.table({"body": pa.array([body.encode() for body in bodies], pa.binary())})


def reference(bodies: Sequence[str], window_ms: int = 0) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    """(kind, topic, group) and, if asked for, the window -> count, failed, p50, p90, p99, max."""
    contexts = [context for body in bodies for context in decode(body)]
    stored: dict[str, tuple[str, int, bool]] = {}
    for context in sorted(contexts, key=lambda one: one.type is TraceType.STORE):
        if context.type in (TraceType.PUB, TraceType.STORE) and context.success:
            bean = context.beans[0]
            at = context.timestamp_ms + (context.cost_ms // 2 if context.type is TraceType.PUB else 0)
            stored[bean.message_id] = bean.topic, at, bean.message_type is TraceMessageType.DELAY
    firsts: dict[tuple[str, str], int] = {}
    samples: list[tuple[str, str | None, str, int, int | None, bool]] = []
    for context in contexts:
        bean, at = context.beans[0], context.timestamp_ms
        if context.type is TraceType.PUB:
            samples.append(("send", bean.topic, context.group, at, context.cost_ms, context.success))
        elif context.type is TraceType.SUB_AFTER:
            topic = stored[bean.message_id][0] if bean.message_id in stored else None
            samples.append(("consume", topic, context.group, at, context.cost_ms, context.success))
        elif context.type is TraceType.SUB_BEFORE:
            key = bean.message_id, context.group
            firsts[key] = min(at, firsts.get(key, at))
    for (message, group), at in firsts.items():
        topic, since, delayed = stored.get(message, (None, at, False))
        if not delayed:
            samples.append(("deliver", topic, group, at, None if topic is None else at - since, True))
    grouped = defaultdict(list)
    for kind, topic, group, at, ms, success in samples:
        window = (at - at % window_ms,) if window_ms else ()
        grouped[kind, topic, group, *window].append((ms, success))
    return {key: _figures(values) for key, values in grouped.items()}


def _figures(values: list[tuple[int | None, bool]]) -> tuple[Any, ...]:
    good = sorted(ms for ms, success in values if success and ms is not None)
    failed = sum(not success for _, success in values)
    ranks = [good[math.ceil(share * len(good)) - 1] if good else None for share in (0.5, 0.9, 0.99, 1.0)]
    return len(values), failed, *ranks
