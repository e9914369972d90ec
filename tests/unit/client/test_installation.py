"""The packages and modules of a program that only has a client."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
import rmq
from rmq.client import blocking
app = rmq.App("127.0.0.1:9876")
rmq.connect("127.0.0.1:9876")
rmq.Producer, rmq.Consumer, rmq.PullConsumer, rmq.TransactionalProducer, rmq.Inbox
servers = ("rmq.broker", "rmq.store", "rmq.namesrv", "rmq.controller", "rmq.server", "rmq.spark",
           "rmq.cli", "rmq.dashboard", "rmq.testing", "trio", "trio_websocket", "click", "rich", "yaml")
below = tuple(one + "." for one in servers)
print([name for name in sys.modules if name.startswith(below) or name in servers])
"""


def test_a_client_loads_no_server() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
