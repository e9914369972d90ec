"""The commands of `rmq admin` that write what a cluster has into files."""

from __future__ import annotations

import json
import pathlib
from typing import TYPE_CHECKING, Any

import click

from rmq.cli.admin.command import Commands, Where, say, where_options

if TYPE_CHECKING:
    from rmq.client.client import Client

COMMANDS = Commands()

file_option = click.option(
    "-f", "--filePath", "folder", default="/tmp/rocketmq/export", show_default=True, help="The folder."
)
cluster_option = click.option("-c", "--clusterName", "cluster", required=True, help="The cluster.")


def _write(folder: str, name: str, value: Any) -> None:
    path = pathlib.Path(folder.strip()) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", "utf-8")
    say(f"export {path} success")


@COMMANDS.add("exportMetadata")
@where_options("Export")
@file_option
@click.option("-t", "--topic", "topics_only", is_flag=True, help="Only topics, into topic.json.")
@click.option(
    "-g", "--subscriptionGroup", "groups_only", is_flag=True, help="Only groups, into subscriptionGroup.json."
)
@click.option("-s", "--specialTopic", "special", is_flag=True, help="Retry topics and dead letters too.")
async def export_metadata(
    client: Client,
    where: Where,
    folder: str,
    topics_only: bool,
    groups_only: bool,
    special: bool,
) -> None:
    """Write topics and groups into metadata.json."""
    whole = await client.admin.export_metadata(**where, special_topics=special)
    name = "metadata.json"
    if topics_only:
        name = "topic.json"
        del whole["subscriptionGroupTable"]
    elif groups_only:
        name = "subscriptionGroup.json"
        del whole["topicConfigTable"]
    _write(folder, name, whole)


@COMMANDS.add("exportConfigs")
@cluster_option
@file_option
async def export_configs(client: Client, cluster: str, folder: str) -> None:
    """Write main settings of a cluster into configs.json."""
    _write(folder, "configs.json", await client.admin.export_configs(cluster))


@COMMANDS.add("exportMetrics")
@cluster_option
@file_option
async def export_metrics(client: Client, cluster: str, folder: str) -> None:
    """Write rates and sizes of a cluster into metrics.json."""
    _write(folder, "metrics.json", await client.admin.export_metrics(cluster))
