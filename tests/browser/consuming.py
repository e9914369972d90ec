"""Consumers that a page is tried with."""

from __future__ import annotations

import subprocess
import sys

from tests.browser.conftest import Dev

CONSUMER = """
import sys, trio, rmq

async def main():
    async with rmq.connect(sys.argv[1]) as client:
        topics = {sys.argv[4]: "*"}
        options = {"consume_from": "first", "max_reconsume_times": 0}
        async with client.consumer(sys.argv[3], topics, **options) as consumer:
            async def handle(message):
                if message.body == b"broken":
                    raise ValueError("address unknown <b>here</b>")
            with trio.move_on_after(float(sys.argv[2])):
                await consumer.run(handle)

trio.run(main)
"""


def consume(dev: Dev, group: str, topic: str) -> None:
    """Let a consumer run for 4 s, which fails on one message."""
    command = [sys.executable, "-c", CONSUMER, dev.namesrv, "4", group, topic]
    subprocess.run(command, check=True, capture_output=True)
