"""`rmq context`: named clusters, so that `-n` need not be typed."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable
from typing import TypeVar

import click
from attrs import evolve

from rmq.cli.output import Format, echo, fail, output_option, show
from rmq.cli.values import read_secret
from rmq.client.settings.contexts import Context, Contexts, contexts_path, read_contexts, write_contexts
from rmq.client.settings.target import ADDRESS_VARIABLE, CONTEXT_VARIABLE
from rmq.errors import ConfigError, RmqError

T = TypeVar("T")


def complete_context(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Names of contexts, for the shell."""
    try:
        names = read_contexts().contexts
    except RmqError:
        return []
    return [name for name in names if name.startswith(incomplete)]


# --- the commands ---


def tls_options(command: Callable[..., T]) -> Callable[..., T]:
    """Add the TLS options, under the names of the fields of `Context`."""
    for option in (
        click.option("--tls-insecure", is_flag=True, help="Accept any certificate. For tests only."),
        click.option("--tls-key", metavar="FILE", help="PEM file of its key."),
        click.option("--tls-cert", metavar="FILE", help="PEM file of an own certificate, for mutual TLS."),
        click.option(
            "--tls-ca", metavar="FILE", help="PEM file of authorities to trust, instead of the system's."
        ),
        click.option("--tls", is_flag=True, help="Speak TLS."),
    ):
        command = option(command)
    return command


@click.group()
def context() -> None:
    """Named clusters: their name servers, account and TLS settings.

    The contexts are in contexts.yaml in your configuration folder, readable only by you. Secrets are never
    shown.
    """


@context.command()
@click.argument("name")
@click.option("-n", "--namesrvAddr", "namesrv", required=True, metavar="HOST:PORT;...", help="Name servers.")
@click.option("--access-key", default="", metavar="NAME", help="Account; the secret is asked for.")
@click.option(
    "--secret-key-file",
    type=click.Path(dir_okay=False, path_type=pathlib.Path),
    help="File to take the account's secret from, instead of asking.",
)
@tls_options
@click.option("--replace", is_flag=True, help="Replace the context of that name.")
def add(
    name: str,
    namesrv: str,
    access_key: str,
    secret_key_file: pathlib.Path | None,
    replace: bool,
    **tls: str | bool | None,
) -> None:
    """Add a cluster under NAME. The first cluster becomes the current cluster."""
    contexts = _read()
    if name in contexts.contexts and not replace:
        fail(ConfigError("context", name, "a new name, or --replace"))
    secret = ""
    if access_key:
        secret = (
            read_secret(secret_key_file)
            if secret_key_file
            else click.prompt("Secret key", hide_input=True, err=True)
        )
    files = {
        key: str(pathlib.Path(value).absolute())
        for key, value in tls.items()
        if isinstance(value, str) and value
    }
    flags = {key: value for key, value in tls.items() if isinstance(value, bool)}
    made = Context(namesrv=namesrv, access_key=access_key, secret_key=secret, **files, **flags)  # type: ignore[arg-type]
    _write(Contexts(contexts.current or name, {**contexts.contexts, name: made}))
    echo(f"context {name} {'replaced' if name in contexts.contexts else 'added'} in {contexts_path()}")


@context.command()
@click.argument("name", shell_complete=complete_context)
def use(name: str) -> None:
    """Make NAME the cluster of commands without -n and --context, and of `rmq.connect()`.

    RMQ_NAMESRV_ADDR, RMQ_CONTEXT and NAMESRV_ADDR take precedence over it.
    """
    contexts = _read()
    _known(contexts, name)
    _write(evolve(contexts, current=name))
    echo(f"context {name} is current")
    for variable in (ADDRESS_VARIABLE, CONTEXT_VARIABLE):
        if os.environ.get(variable):
            echo(f"but here {variable} goes before it: unset it, or give --context {name}", err=True)


@context.command("list")
@output_option
def list_contexts(output: Format) -> None:
    """List the clusters, with a mark at the current cluster."""
    contexts = _read()
    rows = [
        {
            "current": "*" if name == contexts.current else "",
            "name": name,
            "namesrv": one.namesrv,
            "access_key": one.access_key,
            "tls": one.tls_config() is not None,
        }
        for name, one in contexts.contexts.items()
    ]
    show(rows, output)


@context.command("show")
@click.argument("name", required=False, shell_complete=complete_context)
@output_option
def show_context(name: str | None, output: Format) -> None:
    """Show a cluster, by default the current cluster."""
    contexts = _read()
    shown = name or contexts.current
    if not shown:
        fail(
            ConfigError(
                "context",
                "",
                "a NAME, since no context is current; `rmq context use NAME` sets the current context",
            )
        )
    _known(contexts, shown)
    show({"name": shown, **contexts.contexts[shown].shown()}, output)


@context.command()
@click.argument("name", shell_complete=complete_context)
def remove(name: str) -> None:
    """Forget the cluster NAME."""
    contexts = _read()
    _known(contexts, name)
    rest = {key: value for key, value in contexts.contexts.items() if key != name}
    _write(Contexts("" if name == contexts.current else contexts.current, rest))
    echo(f"context {name} removed")


def _read() -> Contexts:
    try:
        return read_contexts()
    except RmqError as error:
        fail(error)


def _write(contexts: Contexts) -> None:
    try:
        write_contexts(contexts)
    except OSError as error:
        fail(error)


def _known(contexts: Contexts, name: str) -> None:
    if name not in contexts.contexts:
        there = ", ".join(contexts.contexts) or "none"
        fail(ConfigError("context", name, f"a known context ({there}); `rmq context add` makes one"))
