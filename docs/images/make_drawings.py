"""Draws the pictures drawn-*.svg of the pages, for light and dark.

python docs/images/make_drawings.py
"""

from __future__ import annotations

import pathlib
from html import escape
from typing import Final

FOLDER: Final = pathlib.Path(__file__).parent
STYLE: Final = """
text { font: 14px system-ui, sans-serif; fill: #1f2933; }
.small { font-size: 12px; fill: #52606d; }
.code { font-family: ui-monospace, monospace; font-size: 12px; }
.title { font-weight: 600; }
.area { fill: #f5f7fa; stroke: #9aa5b1; }
.client { fill: #d9ecff; stroke: #2f6fb3; }
.broker { fill: #e3f5e6; stroke: #2f855a; }
.dead { fill: #fde2e2; stroke: #b83232; }
.wait { fill: #fff2d6; stroke: #b7791f; }
.cell { fill: #ffffff; stroke: #9aa5b1; }
.done { fill: #cbd2d9; stroke: #9aa5b1; }
.line { fill: none; stroke: #52606d; stroke-width: 1.5; }
.head { fill: #52606d; }
@media (prefers-color-scheme: dark) {
text { fill: #e4e7eb; }
.small { fill: #b0bac4; }
.area { fill: #1b222b; stroke: #616e7c; }
.client { fill: #17324d; stroke: #6aa9e9; }
.broker { fill: #17382a; stroke: #62b98a; }
.dead { fill: #4a1f22; stroke: #e58080; }
.wait { fill: #43331a; stroke: #d9a441; }
.cell { fill: #28313c; stroke: #616e7c; }
.done { fill: #47525e; stroke: #616e7c; }
.line { stroke: #b0bac4; }
.head { fill: #b0bac4; }
}
""".strip()


class Drawing:
    """Boxes, texts and arrows; sizes in pixels."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self._parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
            f"<title>{escape(title)}</title>\n<style>\n{STYLE}\n</style>",
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            'orient="auto"><path class="head" d="M0 0L8 4L0 8z"/></marker></defs>',
        ]

    def box(self, x: int, y: int, width: int, height: int, kind: str, *lines: str) -> None:
        """A box with its lines of text in the middle; the first is the title."""
        self._parts.append(f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="6"/>')
        top = y + height / 2 - 9 * (len(lines) - 1) + 5
        for number, line in enumerate(lines):
            kind_of_text = "title" if number == 0 else "small"
            self.text(x + width // 2, round(top + 18 * number), line, kind_of_text, "middle")

    def text(self, x: int, y: int, line: str, kind: str = "small", anchor: str = "start") -> None:
        """A line of text; `anchor` is start, middle or end."""
        self._parts.append(
            f'<text class="{kind}" x="{x}" y="{y}" text-anchor="{anchor}">{escape(line)}</text>'
        )

    def arrow(self, *points: tuple[int, int], dashed: bool = False) -> None:
        """An arrow along points."""
        path = "M" + "L".join(f"{x} {y}" for x, y in points)
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self._parts.append(f'<path class="line"{dash} d="{path}" marker-end="url(#head)"/>')

    def line(self, *points: tuple[int, int]) -> None:
        """A line along points."""
        path = "M" + "L".join(f"{x} {y}" for x, y in points)
        self._parts.append(f'<path class="line" d="{path}"/>')

    def svg(self) -> str:
        """The whole picture."""
        return "\n".join([*self._parts, "</svg>\n"])


def topic() -> Drawing:
    """Topic, queues, offsets, groups."""
    drawing = Drawing(760, 330, "A topic with its queues, read by two groups")
    drawing.box(10, 120, 110, 56, "client", "producer", "sends")
    drawing.box(170, 30, 330, 250, "area")
    drawing.text(184, 52, "topic Orders", "title")
    for queue in range(4):
        y = 66 + queue * 50
        drawing.text(184, y + 21, f"queue {queue}")
        for offset in range(6):
            kind = "done" if offset < (4, 2, 3, 5)[queue] else "cell"
            drawing.box(238 + offset * 40, y, 36, 32, kind)
            drawing.text(256 + offset * 40, y + 21, str(offset), "code", "middle")
    drawing.text(184, 272, "numbers: offsets; grey: consumed by billing")
    drawing.arrow((120, 148), (165, 148))
    drawing.box(560, 30, 190, 150, "area")
    drawing.text(574, 52, "group billing", "title")
    drawing.box(574, 64, 162, 46, "client", "member 1", "queues 0 and 1")
    drawing.box(574, 122, 162, 46, "client", "member 2", "queues 2 and 3")
    drawing.box(560, 196, 190, 84, "area")
    drawing.text(574, 218, "group audit", "title")
    drawing.box(574, 228, 162, 44, "client", "member 1", "all queues")
    for y in (82, 132):
        drawing.arrow((500, y), (569, 87))
    for y in (182, 232):
        drawing.arrow((500, y), (569, 145))
    drawing.arrow((500, 250), (569, 250))
    drawing.text(
        10,
        310,
        "Each group receives every message. Inside a group, each queue belongs to one member at a time.",
    )
    return drawing


def retry() -> Drawing:
    """What becomes of a message whose handler fails."""
    drawing = Drawing(760, 250, "Retries and dead letters")
    drawing.box(10, 40, 120, 56, "broker", "queue", "offset 17")
    drawing.box(210, 40, 140, 56, "client", "handler", "of group billing")
    drawing.box(440, 20, 150, 44, "done", "acknowledged", "offset moves on")
    drawing.box(440, 84, 150, 44, "wait", "retry", "10 s, 30 s, 1 min …")
    drawing.box(440, 176, 150, 56, "dead", "dead letter", "%DLQ%billing")
    drawing.box(640, 176, 110, 56, "client", "operator", "looks at it")
    drawing.arrow((130, 68), (205, 68))
    drawing.text(140, 60, "delivers")
    drawing.arrow((350, 60), (435, 42))
    drawing.text(362, 40, "succeeds")
    drawing.arrow((350, 78), (435, 106))
    drawing.text(362, 112, "fails")
    drawing.arrow((515, 128), (515, 150), (280, 150), (280, 101))
    drawing.text(296, 143, "delivered again, at most 16 times")
    drawing.arrow((590, 106), (612, 106), (612, 160), (560, 171))
    drawing.text(620, 136, "the last one failed")
    drawing.arrow((640, 204), (595, 204))
    drawing.arrow((440, 212), (70, 212), (70, 101), dashed=True)
    drawing.text(84, 204, "rmq dlq redrive: to the topic again")
    return drawing


def transaction() -> Drawing:
    """A transactional send."""
    drawing = Drawing(760, 220, "A transaction: half message, decision, check-back")
    drawing.box(10, 60, 130, 90, "client", "producer", "its database")
    drawing.box(300, 20, 170, 56, "wait", "half message", "no consumer sees it")
    drawing.box(300, 140, 170, 56, "broker", "message", "consumers receive it")
    drawing.box(610, 20, 140, 56, "dead", "rolled back", "never delivered")
    drawing.arrow((140, 74), (295, 44))
    drawing.text(150, 46, "1 sends it")
    drawing.arrow((140, 130), (295, 168))
    drawing.text(146, 176, "2 commits")
    drawing.arrow((385, 76), (385, 135))
    drawing.text(394, 110, "commit")
    drawing.arrow((470, 48), (605, 48))
    drawing.text(500, 40, "roll back")
    drawing.arrow((300, 66), (145, 96), dashed=True)
    drawing.text(186, 102, "3 no decision came:")
    drawing.text(186, 117, "the broker asks")
    return drawing


def send() -> Drawing:
    """The path of a send."""
    drawing = Drawing(760, 300, "The path of a send")
    drawing.box(10, 20, 220, 262, "area")
    drawing.text(24, 42, "your process", "title")
    drawing.box(24, 54, 192, 44, "client", "producer.send", "chooses a queue")
    drawing.box(24, 118, 192, 44, "client", "connection", "many sends, one socket")
    drawing.box(24, 226, 192, 44, "client", "SendResult", "your code goes on")
    drawing.arrow((120, 98), (120, 113))
    drawing.box(280, 20, 290, 262, "area")
    drawing.text(294, 42, "broker (master)", "title")
    drawing.box(294, 54, 262, 44, "broker", "reader", "all frames of a read, no task each")
    drawing.box(294, 118, 262, 44, "broker", "commit log, queue units", "one write for all of them")
    drawing.box(294, 172, 262, 44, "wait", "durability", "memory: now, disk: after the sync")
    drawing.box(294, 226, 262, 44, "broker", "answer", "one send for all of them")
    for y in (98, 162, 216):
        drawing.arrow((425, y), (425, y + (15 if y == 98 else 5)))
    drawing.arrow((216, 140), (250, 140), (250, 76), (289, 76))
    drawing.arrow((294, 248), (221, 248))
    drawing.box(620, 118, 130, 98, "broker", "slave", "the same bytes", "on its disk")
    drawing.arrow((556, 140), (615, 140))
    drawing.arrow((620, 196), (561, 196))
    drawing.text(620, 234, "durability=replicated")
    return drawing


def nurseries() -> Drawing:
    """The blocks of a program, and the tasks below each."""
    drawing = Drawing(760, 320, "The nursery tree of a program")
    drawing.box(10, 20, 740, 280, "area")
    drawing.text(24, 42, "async with rmq.connect() as client", "code")
    drawing.text(24, 62, "tasks: connections, heartbeat, routes")
    drawing.box(30, 78, 330, 92, "client")
    drawing.text(44, 100, "async with client.producer(…) as producer", "code")
    drawing.text(44, 122, "no task for a send: your task waits for its result")
    drawing.text(44, 150, "the end of the block waits for sends on their way")
    drawing.box(390, 78, 340, 206, "client")
    drawing.text(404, 100, "async with client.consumer(…) as consumer", "code")
    drawing.text(404, 122, "tasks: rebalance, commit, a pull loop for each queue")
    drawing.box(400, 136, 322, 106, "cell")
    drawing.text(408, 158, "await consumer.run(handler, concurrency=20)", "code")
    drawing.text(408, 180, "up to 20 handlers at a time")
    drawing.text(408, 202, "an error in a handler: the message is retried")
    drawing.text(408, 224, "a cancelled handler: it is delivered again")
    drawing.text(404, 266, "at the end: handlers finish, offsets are committed")
    drawing.text(30, 204, "A block ends when all below it has ended.")
    drawing.text(30, 228, "Nothing runs on after its block, and no error")
    drawing.text(30, 248, "of a background task is lost: it leaves the block.")
    return drawing


DRAWINGS: Final = {
    "topic": topic,
    "retry": retry,
    "transaction": transaction,
    "send": send,
    "nurseries": nurseries,
}


def pictures() -> dict[str, str]:
    """The files and their texts."""
    return {f"drawn-{name}.svg": draw().svg() for name, draw in DRAWINGS.items()}


if __name__ == "__main__":
    for file, text in pictures().items():
        FOLDER.joinpath(file).write_text(text, "utf-8")
