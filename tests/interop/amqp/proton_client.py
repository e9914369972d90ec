"""proton_client.py HOST:PORT COUNT: qpid-proton's own client: send, receive, and settle messages."""

from __future__ import annotations

import sys
from typing import Any

from proton import Message
from proton.utils import BlockingConnection

address, count = sys.argv[1], int(sys.argv[2])
connection: Any = BlockingConnection(address, timeout=30, allowed_mechs="ANONYMOUS")
sender = connection.create_sender("Orders")
for number in range(count):
    sender.send(Message(id=str(number), body={"number": number}, properties={"kind": "proton"}))
receiver = connection.create_receiver("Orders", credit=10)
got = []
for _ in range(count):
    message = receiver.receive(timeout=30)
    got.append(f"{message.body['number']}{message.properties['kind']}")
    receiver.accept()
connection.close()
print("ok", *got)
