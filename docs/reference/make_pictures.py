"""Writes docs/images/*.svg: charts of the reports of `rmq spark`, made of examples/data/orders.csv.

python docs/reference/make_pictures.py
"""

from __future__ import annotations

import csv
import json
import pathlib
import re
import tempfile
import zlib
from bisect import bisect_right
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from rmq.spark import profile_topics, report_lag, session
from rmq.spark.formats.schema import spark_schema
from rmq.spark.pipelines.lag import LagSample, write_samples
from rmq.spark.pipelines.profile import COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT: Final = pathlib.Path(__file__).resolve().parents[2]
IMAGES: Final = ROOT / "docs" / "images"
UNTIL: Final = "2024-11-12T12"

# File -> the report that the chart is in, and the chart's title.
CHARTS: Final = {
    "lag.svg": ("lag", "billing, Orders"),
    "rate.svg": ("profile", "Messages by time"),
    "tags.svg": ("profile", "Tags"),
}

# A page's own style does not reach into an image; the two colours of text are those of light and dark pages.
STYLE: Final = (
    "<style>svg{font:12px system-ui,sans-serif;fill:#1f2328}.grid{stroke:#8884}"
    "@media(prefers-color-scheme:dark){svg{fill:#d1d7e0}}</style>"
)


def orders() -> list[dict[str, str]]:
    """The rows of the example, by time."""
    with (ROOT / "examples" / "data" / "orders.csv").open(newline="") as lines:
        found = [row for row in csv.DictReader(lines) if row["ts"] < UNTIL]
    return sorted(found, key=lambda row: row["ts"])


def time_of(order: dict[str, str]) -> datetime:
    return datetime.strptime(order["ts"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)


def samples() -> Iterator[LagSample]:
    """A group that handles 60 orders in ten minutes, and from 8 to 11 o'clock none."""
    times = [int(time_of(order).timestamp() * 1000) for order in orders()]
    begin, consumed = times[0] - times[0] % 86_400_000, 0
    for at in range(begin, times[-1], 600_000):
        stored, hour = bisect_right(times, at), (at - begin) / 3_600_000
        if not 8 <= hour < 11:
            consumed = min(stored, consumed + 60)
        yield LagSample(at, "billing", "Orders", "broker-a", 0, stored, consumed, 0)


def messages() -> Iterator[tuple[object, ...]]:
    """The orders as messages of a topic with 4 queues: COLUMNS."""
    for order in orders():
        key = order["order_id"]
        queue = zlib.crc32(key.encode()) % 4
        body = json.dumps(order).encode()
        yield "Orders", "broker-a", queue, body, order["step"], key, {}, time_of(order)


def pictures(spark: SparkSession, folder: pathlib.Path) -> dict[str, str]:
    """File -> SVG. The reports are written to `folder`."""
    write_samples(list(samples()), folder / "lag")
    report_lag(spark, folder / "lag")
    profile_topics(
        spark, spark.createDataFrame(list(messages()), spark_schema(COLUMNS)), str(folder / "profile")
    )
    pages = {name: (folder / name / "report.html").read_text("utf-8") for name in ("lag", "profile")}
    return {file: image(pages[report], title) for file, (report, title) in CHARTS.items()}


def image(page: str, title: str) -> str:
    """A chart of a page as a file of its own."""
    found = re.search(rf"<h3>{re.escape(title)}</h3><svg (.*?)>(.*?)</svg>", page)
    assert found, title
    return f'<svg xmlns="http://www.w3.org/2000/svg" {found[1]}>{STYLE}{found[2]}</svg>\n'


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        for name, text in pictures(session("pictures", master="local[2]"), pathlib.Path(place)).items():
            (IMAGES / name).write_text(text, "utf-8")
