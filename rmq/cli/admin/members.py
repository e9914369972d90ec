"""What running consumers say of themselves, as mqadmin prints and compares it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rmq.cli.admin.command import cell_text
from rmq.message import RETRY_PREFIX
from rmq.protocol.admin_bodies import ConsumerRunningInfo

CALM_MS = 60_000
"""A queue with messages from which nothing was consumed for longer is reported."""


def running_text(info: ConsumerRunningInfo) -> str:
    """All that a member says: settings, subscriptions, offsets, queues, rates, stack."""
    sections = [
        "#Consumer Properties#",
        *(f"{name:<40}: {cell_text(value)}" for name, value in info.properties.items()),
        "",
        "",
        "#Consumer Subscription#",
        *_subscriptions(info),
        "",
        "",
        "#Consumer Offset#",
        _line("#Topic", "#Broker Name", "#QID", "#Consumer Offset"),
        *(
            _line(queue.topic, queue.broker_name, queue.queue_id, one.commit_offset)
            for queue, one in sorted(info.mq_table.items())
        ),
        "",
        "",
        "#Consumer MQ Detail#",
        _line("#Topic", "#Broker Name", "#QID", "#ProcessQueueInfo"),
        *(
            _line(queue.topic, queue.broker_name, queue.queue_id, cell_text(one))
            for queue, one in sorted(info.mq_table.items())
        ),
        "",
        "",
        "#Consumer RT&TPS#",
        *_rates(info),
    ]
    if info.jstack is not None:
        sections += ["", "", "#Consumer jstack#", info.jstack]
    return "\n".join(sections) + "\n"


def _line(topic: str, broker_name: str, queue_id: object, value: object) -> str:
    return f"{topic:<64}  {broker_name:<32}  {queue_id!s:<4}  {value!s:<20}".rstrip()


def _subscriptions(info: ConsumerRunningInfo) -> Iterator[str]:
    for number, data in enumerate(sorted(info.subscription_set, key=lambda data: data.topic), 1):
        yield (
            f"{number:03d} Topic: {data.topic:<40} ClassFilter: {cell_text(data.class_filter_mode):<8} "
            f"SubExpression: {data.sub_string}"
        )


def _rates(info: ConsumerRunningInfo) -> Iterator[str]:
    heads = ("#Pull RT", "#Pull TPS", "#Consume RT", "#ConsumeOK TPS")
    yield (
        f"{'#Topic':<64}  "
        + " ".join(f"{head:>14}" for head in heads)
        + f" {'#ConsumeFailed TPS':>18} {'#ConsumeFailedMsgsInHour':>25}"
    )
    for topic, one in sorted(info.status_table.items()):
        values = (one.pull_rt, one.pull_tps, one.consume_rt, one.consume_ok_tps)
        yield (
            f"{topic:<64}  "
            + " ".join(f"{value:14.2f}" for value in values)
            + f" {one.consume_failed_tps:18.2f} {one.consume_failed_msgs:25d}"
        )


def same_subscriptions(infos: Iterable[ConsumerRunningInfo]) -> bool:
    """Whether all members want the same of the same topics."""
    wanted = {
        frozenset(
            (data.topic, data.sub_string, data.expression_type)
            for data in info.subscription_set
            if not data.topic.startswith(RETRY_PREFIX)
        )
        for info in infos
    }
    return len(wanted) <= 1


def troubles(client_id: str, info: ConsumerRunningInfo, now_ms: int) -> Iterator[str]:
    """Queues of a pushed member that do not move: unlocked ones of an ordered group, full ones of others."""
    if info.properties.get("PROP_CONSUME_TYPE") != "CONSUME_PASSIVELY":
        return
    ordered = info.properties.get("PROP_CONSUMEORDERLY") == "true"
    for queue, one in sorted(info.mq_table.items()):
        name = f"{client_id} {cell_text(queue)}"
        if ordered and not one.locked:
            yield f"{name} can't lock for a while, {now_ms - one.last_lock_timestamp}ms"
        elif ordered and one.droped and one.try_unlock_times > 0:
            yield f"{name} unlock {one.try_unlock_times} times, still failed"
        elif not ordered and one.cached_msg_count > 0:
            still_ms = now_ms - one.last_consume_timestamp
            if still_ms > CALM_MS:
                yield f"{name} can't consume for a while, maybe blocked, {still_ms}ms"
