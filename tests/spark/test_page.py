"""The blocks of docs/spark.md run as they stand, one after the other."""

from __future__ import annotations

import pathlib
import re
from typing import TYPE_CHECKING, Any

from rmq.client import blocking
from rmq.message import Message
from tests.spark.cluster import running

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "spark.md"
CELL = re.compile(r"```python\n(.*?)```", re.S)
PUSHED = "spark.sql.python.filterPushdown.enabled"


def test_the_blocks_of_the_page_run(spark: SparkSession, tmp_path: pathlib.Path) -> None:
    page = PAGE.read_text("utf-8")
    text = page.replace("/data/rmq/store", f"{tmp_path}/pair/store").replace("/data/", f"{tmp_path}/")
    cells = CELL.findall(text)
    assert len(cells) >= 9
    untagged = re.findall(r"```\n(.*?)```", re.sub(r"```\w+\n.*?```", "", page, flags=re.S), re.S)
    assert not [block for block in untagged if "spark." in block.split("(")[0]], "Python is tagged as such"
    with running(tmp_path / "pair") as pair:
        for topic in ("Orders", "Copies", "%DLQ%billing"):
            pair.make_topic(topic, 2)
        with blocking.connect(pair.names) as client, client.producer("tests") as producer:
            texts = [f'{{"id": {number}, "amount": 1.5}}'.encode() for number in range(20)]
            producer.send_batch([Message("Orders", text, tags="paid") for text in [*texts, b"no json"]])
        names: dict[str, Any] = {}
        try:
            for cell in cells:
                program = cell.replace("127.0.0.1:9876", pair.names).replace("port=9464", "port=0")
                exec(compile(program, "cell", "exec"), names)
                if "query" in names:
                    names.pop("query").awaitTermination()
        finally:
            spark.conf.set(PUSHED, "false")
            if "metrics" in names:
                names["metrics"].close()
        assert names["good"].count() == 20
        assert names["once"].count() == 21
        assert names["read_table"](spark, f"{tmp_path}/orders/table", to="parquet").count() == 21
