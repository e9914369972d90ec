"""A broker behind a connection, as a client sees it."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from rmq.protocol.command import Command
from tests.unit.broker.rig import Rig


class Session:
    """The lines of one captured session that went to and from the broker."""

    def __init__(self, path: Path) -> None:
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        self.lines = [line for line in lines if line["target"] == "broker" and "code" in line]

    def answers(self) -> dict[int, dict[str, Any]]:
        """Opaque -> the Java broker's answer."""
        return {line["opaque"]: line for line in self.lines if line["kind"] == "response"}


def command_of(line: dict[str, Any]) -> Command:
    body = base64.b64decode(line.get("body_b64") or "")
    version, language = line["version"], line["language"]
    return Command(
        line["code"], line["opaque"], line["flag"], line.get("ext") or {}, body, None, language, version
    )


def wire_rig() -> Rig:
    """A broker with the name and the cluster of the captured one."""
    rig = Rig(default_topic_queue_nums=8)
    rig.broker.settings.replace(rig.config.__class__(broker_cluster_name="WireCluster"), rig.store_config)
    return rig
