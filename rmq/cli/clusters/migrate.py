"""`rmq migrate check`: differences between a cluster of Apache RocketMQ and rmq, before it is moved."""

from __future__ import annotations

import sys

import click
from attrs import evolve

from rmq.cli.output import EXIT_FAILED, Format, echo, fail, output_option, show
from rmq.cli.target import Target, run_admin, target_options
from rmq.errors import ConfigError
from rmq.printable import counted


@click.group()
def migrate() -> None:
    """Move a cluster of Apache RocketMQ to rmq.

    docs/runbooks.md, "Java in and out", has the move itself, broker by broker, and the way back.
    """


@migrate.command("check")
@click.argument("address", default="")
@click.option("--json", "as_json", is_flag=True, help="The same as -o json.")
@output_option
@target_options
def check(target: Target, address: str, as_json: bool, output: Format) -> None:
    """Show what would differ if the cluster of RocketMQ 4.x or 5.x at ADDRESS moved to rmq.

    ADDRESS is name servers as host:port, several joined by ; (or -n, or a context). The command looks at
    versions, settings, topics and their attributes, static topics, waiting messages, groups, accounts and
    connected clients, and changes nothing. Each finding has its remedy: "stop" prevents the move of the
    cluster in its present state, "act" needs work before or during the move, "note" is information. Status 1
    with a "stop".
    """
    from rmq.client.session.requests import parse_name_servers
    from rmq.operate.migration.findings import findings
    from rmq.operate.migration.look import look

    if address:
        try:
            target = evolve(target, namesrv=";".join(parse_name_servers(address)))
        except ConfigError as error:
            fail(error)
    facts = run_admin(target, look)
    found = findings(facts)
    output = "json" if as_json else output
    show(found, output)
    if output == "table":
        counts = ", ".join(
            f"{sum(one.level == level for one in found)} {level}" for level in ("stop", "act", "note")
        )
        seen = f"{counted(len(facts.brokers), 'broker')}, {counted(len(facts.clients), 'kind')} of clients"
        echo(f"{seen}: {counts}", err=True)
    if any(one.level == "stop" for one in found):
        sys.exit(EXIT_FAILED)
