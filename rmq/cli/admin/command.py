"""Common parts of the commands of `rmq admin`: making a command, and RocketMQ's form of rows and values."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime
from typing import Any, Final, TypedDict

import attrs
import click

from rmq.cli.output import clock_text, echo
from rmq.cli.target import Target, run, target_options
from rmq.message import MessageQueue
from rmq.printable import printable
from rmq.protocol.codes import PERM_INHERIT, PERM_READ, PERM_WRITE
from rmq.protocol.fields import Body, java_name

Work = Callable[..., Awaitable[None]]
Maker = Callable[[Work], click.Command]

NUMBER = click.IntRange(min=0)
COUNT = click.IntRange(min=1)


class Commands(dict[str, click.Command]):
    """The commands of a module by name; `add` makes one of an async function."""

    def add(self, name: str, *, connected: bool = True) -> Maker:
        """Makes `work(client, **options)` a command; its docstring is the help. Without `connected`, it gets
        the target and connects itself."""

        def make(work: Work) -> click.Command:
            @functools.wraps(work)
            def begin(target: Target, **options: Any) -> None:
                if connected:
                    run(_within, target, work, options)
                else:
                    run(functools.partial(work, target, **options))

            settings = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
            made = click.command(name, help=work.__doc__, context_settings=settings)(target_options(begin))
            self[name] = made
            return made

        return make


async def _within(target: Target, work: Work, options: dict[str, Any]) -> None:
    async with target.connect() as client:
        await work(client, **options)


class Where(TypedDict):
    """The broker or the cluster of a command, as the methods of `client.admin` take them."""

    broker: str
    cluster: str


def where_options(what: str, *, needed: bool = True) -> Callable[[Work], Work]:
    """Add the options -b and -c to a command: one of them is required, unless `needed` is false (without
    both: all brokers). The command gets an argument `where`, for the methods of `client.admin`."""

    def decorate(work: Work) -> Work:
        @functools.wraps(work)
        async def placed(client: Any, broker: str | None, cluster: str | None, **options: Any) -> None:
            if broker and cluster:
                raise click.UsageError("give -b or -c, not both")
            if needed and not broker and not cluster:
                raise click.UsageError("give -b (a broker) or -c (a cluster)")
            where = Where(broker=(broker or "").strip(), cluster=(cluster or "").strip())
            await work(client, where=where, **options)

        long = "--clusterName" if needed else "--cluster"
        placed = click.option("-c", long, "cluster", help=f"{what}: all brokers of this cluster.")(placed)
        return click.option("-b", "--brokerAddr", "broker", help=f"{what}: this broker.")(placed)

    return decorate


# --- RocketMQ's form of output ---


def row(widths: Iterable[int], *values: object) -> None:
    """Values in columns; a negative width aligns the value to the left. The last column is not padded."""
    cells = [_padded(cell_text(value), width) for width, value in zip(widths, values, strict=True)]
    echo("  ".join(cells).rstrip())


def cell_text(value: object) -> str:
    """A value as Java prints it, in a single line, with control characters escaped."""
    if isinstance(value, float):
        return f"{value:.2f}"
    return printable(java_text(value))


def _padded(text: str, width: int) -> str:
    return text.ljust(-width) if width < 0 else text.rjust(width)


def java_text(value: Any) -> str:
    """A value as Java's toString writes it: ``null``, ``true``, ``[a, b]``, ``{a=b}``, ``Name [a=b]``."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{java_text(key)}={java_text(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple, frozenset)):
        return "[" + ", ".join(map(java_text, value)) + "]"
    if isinstance(value, MessageQueue):
        return f"MessageQueue [topic={value.topic}, brokerName={value.broker_name}, queueId={value.queue_id}]"
    if isinstance(value, Body):
        return _body_text(value)
    return str(value)


LATER_FIELDS: Final = frozenset(
    (
        "creation",
        "attributes",
        "consumeMessageOrderly",
        "groupRetryPolicy",
        "groupSysFlag",
        "consumeTimeoutMinute",
    )
)
"""Fields that the classes of 4.9's mqadmin lack; printed only if they are set."""


def printed_fields(body: Any) -> list[tuple[str, Any]]:
    """The fields of a body that mqadmin of 4.9 prints, with Java's names; a later field only where set."""
    pairs = ((java_name(field), getattr(body, field.name)) for field in attrs.fields(type(body)))
    return [(name, item) for name, item in pairs if item is not None or name not in LATER_FIELDS]


def _body_text(body: Any) -> str:
    texts = (
        f"{name}={_java_perm(item) if name == 'perm' else java_text(item)}"
        for name, item in printed_fields(body)
    )
    return f"{type(body).__name__} [{', '.join(texts)}]"


def _java_perm(perm: int) -> str:
    """A topic's permission as Java's toString writes it: ``RW-``."""
    bits = ((PERM_READ, "R"), (PERM_WRITE, "W"), (PERM_INHERIT, "X"))
    return "".join(letter if perm & bit else "-" for bit, letter in bits)


def stamp(ms: int, *, otherwise: str = "") -> str:
    """A time in ms since 1970 as local ``2026-11-21 10:00:00,000``."""
    return clock_text(ms).replace(".", ",") if ms > 0 else otherwise


def seconds_stamp(ms: int, *, otherwise: str = "") -> str:
    """The same to the second."""
    return stamp(ms, otherwise=otherwise).partition(",")[0] if ms > 0 else otherwise


_FORM: Final = "%Y-%m-%d#%H:%M:%S:%f"


def as_time(context: click.Context, parameter: click.Parameter, given: str | None) -> int | None:
    """An option's time, in ms since 1970: a number of ms, or local ``yyyy-MM-dd#HH:mm:ss:SSS``."""
    if given is None:
        return None
    text = given.strip()
    if text.isascii() and text.lstrip("-").isdigit():
        return int(text)
    try:
        return round(datetime.strptime(text, _FORM).timestamp() * 1000)
    except ValueError:
        raise click.BadParameter(f"{text!r} is no time: ms since 1970 or yyyy-MM-dd#HH:mm:ss:SSS") from None


def as_time_or_now(context: click.Context, parameter: click.Parameter, given: str | None) -> int | None:
    """The same; the word ``now`` is -1, the end of a queue."""
    return -1 if given is not None and given.strip() == "now" else as_time(context, parameter, given)
