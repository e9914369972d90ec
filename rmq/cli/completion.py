"""`rmq completion SHELL`, and the suggestions of topics and groups for the shell."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

import click

from rmq.cli.output import echo
from rmq.cli.target import resolve
from rmq.client.settings.contexts import Context
from rmq.errors import RmqError

if TYPE_CHECKING:
    from rmq.client.client import Client

VARIABLE: Final = "_RMQ_COMPLETE"
TIMEOUT_SECONDS: Final = 1.0
"""Seconds that the Tab key waits for the cluster; after them nothing is suggested."""


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of a shell.

    bash: eval "$(rmq completion bash)" in ~/.bashrc; zsh: the same in ~/.zshrc; fish: rmq completion fish >
    ~/.config/fish/completions/rmq.fish
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    script = kind(click.get_current_context().find_root().command, {}, "rmq", VARIABLE)
    # Not source(): for bash that would start a bash to query its version.
    echo(script.source_template % script.source_vars())


def complete_topic(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Topics of the cluster that the line names, if it answers soon."""

    async def ask(client: Client) -> list[str]:
        return sorted(topic for topic in await client.admin.topics() if not topic.startswith("%"))

    return _suggestions(context, incomplete, ask)


def complete_group(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Consumer groups of the cluster that the line names."""

    async def ask(client: Client) -> list[str]:
        return sorted(await client.admin.groups())

    return _suggestions(context, incomplete, ask)


def _suggestions(
    context: click.Context, incomplete: str, ask: Callable[[Client], Awaitable[list[str]]]
) -> list[str]:
    """The cluster's answer; nothing when it does not answer, because a Tab key should not show errors."""
    import trio

    options = context.params
    texts = {
        name: options.get(name) or "" for name in ("namesrv", "access_key", "tls_ca", "tls_cert", "tls_key")
    }
    flags = {name: bool(options.get(name)) for name in ("tls", "tls_insecure")}

    async def within() -> list[str]:
        file = options.get("secret_key_file")
        secret = pathlib.Path(file).read_text("utf-8").strip() if file else ""
        given = Context(**texts, **flags, secret_key=secret)  # type: ignore[arg-type]
        target = resolve(given, options.get("context_name"), os.environ)
        with trio.move_on_after(TIMEOUT_SECONDS):
            async with target.connect() as client:
                return await ask(client)
        return []

    try:
        names = trio.run(within)
    except (RmqError, OSError, UnicodeDecodeError):
        return []
    return [name for name in names if name.startswith(incomplete)]
