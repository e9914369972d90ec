"""Writes docs/design/map.md: the reading order, and a line for each module from its docstring.

python docs/design/make_map.py
"""

from __future__ import annotations

import ast
import pathlib
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = pathlib.Path(__file__).with_name("map.md")

READING = (
    ("rmq/message.py", "the messages that an application sends and gets"),
    ("rmq/protocol/command.py", "a request or response in memory"),
    ("rmq/protocol/frames.py", "bytes to commands and back: `Decoder`, `encode`"),
    ("rmq/protocol/record.py", "the bytes of a stored message, equal in log, pull and Spark"),
    ("rmq/remoting/endpoint.py", "the interface of a service for a connection"),
    ("rmq/remoting/connection.py", "one peer: calls, answers, chunks of requests"),
    ("rmq/broker/broker.py", "the parts of a broker, and the end of every chunk"),
    ("rmq/broker/produce/send.py", "a request as a record"),
    ("rmq/broker/produce/append.py", "checks before a message is stored; delays, the broker's own writes"),
    ("rmq/broker/produce/acks.py", "the conditions that a send waits for, and its response"),
    ("rmq/broker/consume/long_polling.py", "pulls that wait for messages, as rows in tables"),
    ("rmq/broker/consume/read.py", "the rules of a read, and held reads"),
    ("rmq/broker/consume/pull.py", "reads as requests and responses of the wire"),
    ("rmq/broker/transactions.py", "half messages, their end, check-back"),
    ("rmq/broker/runtime/service.py", "the nursery tree: all loops of a broker"),
    ("rmq/store/store.py", "log, queues and index as one"),
    ("rmq/store/files/commitlog.py", "put and commit"),
    ("rmq/store/files/segments.py", "equal files as one address space"),
    ("rmq/store/files/consumequeue.py", "the units of a queue"),
    ("rmq/store/view.py", "the readable part of a store"),
    ("rmq/store/recovery.py", "the end of the log after a crash"),
    ("rmq/client/session/session.py", "the parts that producers and consumers share"),
    ("rmq/client/produce/producer.py", "the calls of an application that sends"),
    ("rmq/client/produce/sender.py", "the choice of queue and broker, and retries"),
    ("rmq/client/produce/outgoing.py", "a message as a request"),
    ("rmq/client/consume/pull.py", "a pull, and the loop that keeps a window filled"),
    ("rmq/client/consume/process_queue.py", "the window of one queue, and its committable offset"),
    ("rmq/client/consume/consumer.py", "iteration and handlers"),
)
"""A day's reading: files in this order, each with its subject."""

HEAD = """# Map

`make_map.py` writes this page from the docstrings of the modules. [paths.md](paths.md) follows a message
through the modules, [README.md](README.md) has their layers.

## Read these in this order

"""


def modules() -> Iterator[tuple[str, str]]:
    """Each module of ours, and the first sentence of its docstring. Raises SystemExit where there is none."""
    for top in ("rmq", "plugins"):
        for path in sorted((ROOT / top).rglob("*.py")):
            source = path.read_text("utf-8")
            text = ast.get_docstring(ast.parse(source)) or ""
            if not text and source.strip():
                raise SystemExit(f"{path}: has no docstring")
            if text:
                line = " ".join(text.split("\n\n")[0].split())
                yield path.relative_to(ROOT).as_posix(), line.replace("|", "\\|")


def length(path: str) -> int:
    """How many lines a file has, to the nearest fifty: the page is not to change with each of them."""
    return max(50, round((ROOT / path).read_text("utf-8").count("\n") / 50) * 50)


def page() -> str:
    """The whole page."""
    lengths = {path: length(path) for path, _ in READING}
    reading = [f"| `{path}` | {lengths[path]} | {what} |" for path, what in READING]
    total = f"Some {round(sum(lengths.values()), -3):,} lines in {len(READING)} files.\n"
    parts = [HEAD + "| file | lines | subject |\n|---|---|---|\n" + "\n".join(reading), total]
    packages: dict[str, list[str]] = {}
    for path, line in modules():
        folder, name = path.rsplit("/", 1)
        packages.setdefault(folder, []).append(f"| `{name.removesuffix('.py')}` | {line} |")
    for folder, lines in packages.items():
        parts.append(
            f"## {folder} ({len(lines)})\n\n| module | what |\n|---|---|\n" + "\n".join(lines) + "\n"
        )
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
