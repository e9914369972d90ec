"""rmq.protocol.trace against texts of Java's TraceDataEncoder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rmq.errors import RemoteProtocolError
from rmq.protocol.trace import (
    TraceBean,
    TraceContext,
    TraceMessageType,
    TraceType,
    decode,
    encode,
    index_keys,
)

VECTORS: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "golden" / "trace.json").read_text(encoding="utf-8")
)
JAVA_TYPES = ("Normal_Msg", "Trans_Msg_Half", "Trans_msg_Commit", "Delay_Msg")
NAMES = {
    "traceType": lambda context: context.type.value,
    "timeStamp": lambda context: context.timestamp_ms,
    "regionId": lambda context: context.region_id,
    "groupName": lambda context: context.group,
    "costTime": lambda context: context.cost_ms,
    "success": lambda context: context.success,
    "requestId": lambda context: context.request_id,
    "contextCode": lambda context: context.context_code,
}
BEAN_NAMES = {
    "topic": lambda bean: bean.topic,
    "msgId": lambda bean: bean.message_id,
    "offsetMsgId": lambda bean: bean.offset_message_id,
    "tags": lambda bean: bean.tags,
    "keys": lambda bean: bean.keys,
    "storeHost": lambda bean: bean.store_host,
    "clientHost": lambda bean: bean.client_host,
    "bodyLength": lambda bean: bean.body_length,
    "retryTimes": lambda bean: bean.retry_times,
    "transactionId": lambda bean: bean.transaction_id,
    "fromTransactionCheck": lambda bean: bean.from_transaction_check,
}


def context_of(row: dict[str, Any]) -> TraceContext:
    beans = tuple(
        TraceBean(
            bean["topic"],
            bean["msgId"],
            bean["offsetMsgId"],
            bean["tags"],
            bean["keys"],
            bean["storeHost"],
            bean["clientHost"],
            bean["bodyLength"],
            bean["retryTimes"],
            TraceMessageType(JAVA_TYPES.index(bean["msgType"])),
            bean["transactionId"],
            bean["transactionState"],
            bean["fromTransactionCheck"],
        )
        for bean in row["traceBeans"]
    )
    return TraceContext(
        TraceType(row["traceType"]),
        beans,
        row["timeStamp"],
        row["regionId"],
        row["groupName"],
        row["costTime"],
        row["success"],
        row["requestId"],
        row["contextCode"],
    )


@pytest.mark.parametrize(
    "vector", [one for one in VECTORS["encoded"] if not one["cloud"]], ids=lambda vector: vector["name"]
)
def test_texts_are_javas(vector: dict[str, Any]) -> None:
    context = context_of(vector["context"])
    assert encode(context) == vector["text"]
    assert sorted(index_keys(context)) == sorted(vector["keys"])


@pytest.mark.parametrize("vector", VECTORS["decoded"], ids=lambda vector: vector["name"])
def test_texts_are_read_as_java_reads_them(vector: dict[str, Any]) -> None:
    if vector["name"] == "sub before without keys":  # Java cannot read what it wrote itself
        assert [context.beans[0].keys for context in decode(vector["text"])] == [""]
        return
    if "exception" in vector:
        with pytest.raises(RemoteProtocolError, match="a trace cannot be read"):
            decode(vector["text"])
        return
    found = decode(vector["text"])
    assert len(found) == len(vector["contexts"])
    for context, row in zip(found, vector["contexts"], strict=True):
        for name, value in NAMES.items():
            assert row.get(name, value(context)) == value(context), name
        (bean,), (expected,) = context.beans, row["traceBeans"]
        for name, value in BEAN_NAMES.items():
            assert expected.get(name, value(bean)) == value(bean), name
        assert expected["msgType"] in (None, JAVA_TYPES[bean.message_type.value])
        assert expected["transactionState"] in (None, bean.transaction_state)


def test_a_row_that_java_could_not_read_is_not_written() -> None:
    context = TraceContext(TraceType.SUB_BEFORE, (TraceBean(message_id="ID", keys=""),))
    assert encode(context).endswith("\x01null\x02")


def test_a_stored_message_has_the_fields_of_a_sent_one() -> None:
    bean = TraceBean("T", "ID", "OFF", "a", "k", "h:1", "", 7)
    context = TraceContext(TraceType.STORE, (bean,), 5, "r", "", 2)
    assert encode(context).startswith("Store\x015\x01r\x01\x01T\x01ID\x01")
    assert decode(encode(context)) == [context]


@pytest.mark.parametrize(
    "text", ["Pub\x01", "SubAfter\x01a\x01b\x01c\x01d\x01e\x02", "EndTransaction\x011\x02"]
)
def test_damaged_rows_are_refused(text: str) -> None:
    with pytest.raises(RemoteProtocolError):
        decode(text)
