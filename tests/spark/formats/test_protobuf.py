"""Bodies that are Protobuf messages, as rows. Descriptors are made as protoc would make them."""

from __future__ import annotations

import base64
import pathlib
import pickle
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("google.protobuf")

from google.protobuf import timestamp_pb2, wrappers_pb2
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    EnumValueDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)

from rmq.errors import ConfigError
from rmq.spark import decoded
from rmq.spark.formats.protobuf import description_of, reader, schema_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

F = FieldDescriptorProto
ONE, MANY = F.LABEL_OPTIONAL, F.LABEL_REPEATED


def file() -> FileDescriptorProto:
    """shop.proto: an Order with all kinds of fields, and an Old one as proto2 has it."""
    entry = DescriptorProto(
        name="StockEntry",
        field=[
            F(name="key", number=1, label=ONE, type=F.TYPE_STRING),
            F(name="value", number=2, label=ONE, type=F.TYPE_UINT32),
        ],
    )
    entry.options.map_entry = True
    line = DescriptorProto(
        name="Line", field=[F(name="name", number=1, label=ONE, type=F.TYPE_STRING)], nested_type=[]
    )
    message, named = F.TYPE_MESSAGE, ".google.protobuf."
    fields = [
        F(name="id", number=1, label=ONE, type=F.TYPE_INT64),
        F(name="name", number=2, label=ONE, type=F.TYPE_STRING, proto3_optional=True, oneof_index=0),
        F(name="amount", number=3, label=ONE, type=F.TYPE_DOUBLE),
        F(name="lines", number=4, label=MANY, type=message, type_name=".shop.Order.Line"),
        F(name="stock", number=5, label=MANY, type=message, type_name=".shop.Order.StockEntry"),
        F(name="state", number=6, label=ONE, type=F.TYPE_ENUM, type_name=".shop.State"),
        F(name="at", number=7, label=ONE, type=message, type_name=f"{named}Timestamp"),
        F(name="took", number=8, label=ONE, type=message, type_name=f"{named}Duration"),
        F(name="large", number=9, label=ONE, type=F.TYPE_FIXED64),
        F(name="raw", number=10, label=ONE, type=F.TYPE_BYTES),
        F(name="codes", number=11, label=MANY, type=F.TYPE_SINT32),
        F(name="note", number=12, label=ONE, type=message, type_name=f"{named}StringValue"),
        F(name="is_paid", number=13, label=ONE, type=F.TYPE_BOOL),
        F(name="share", number=14, label=ONE, type=F.TYPE_FLOAT),
    ]
    order = DescriptorProto(name="Order", field=fields, nested_type=[line, entry])
    order.oneof_decl.add(name="_name")
    tree = DescriptorProto(
        name="Tree", field=[F(name="left", number=1, label=ONE, type=message, type_name=".shop.Tree")]
    )
    values = [EnumValueDescriptorProto(name=name, number=at) for at, name in enumerate(("NEW", "PAID"))]
    return FileDescriptorProto(
        name="shop.proto",
        package="shop",
        syntax="proto3",
        dependency=[f"google/protobuf/{name}.proto" for name in ("timestamp", "duration", "wrappers")],
        message_type=[order, tree],
        enum_type=[EnumDescriptorProto(name="State", value=values)],
    )


ORDER = description_of(FileDescriptorSet(file=[file()]).SerializeToString())
OLD = description_of(
    FileDescriptorProto(
        name="old.proto",
        message_type=[
            DescriptorProto(
                name="Old",
                field=[
                    F(name="id", number=1, label=F.LABEL_REQUIRED, type=F.TYPE_INT32),
                    F(name="more", number=2, label=ONE, type=F.TYPE_INT32, default_value="7"),
                ],
            )
        ],
    ).SerializeToString()
)


def made(**values: Any) -> Any:
    """A message, by the library."""
    from rmq.spark.formats.protobuf import _message_type

    return _message_type(ORDER, "shop.Order")(**values)


FULL = made(
    id=-5,
    name="",
    amount=2.5,
    lines=[{"name": "ü"}, {}],
    stock={"a": 4_000_000_000},
    state=1,
    large=2**64 - 1,
    raw=b"\0\xff",
    codes=[-1, 1],
    is_paid=True,
    share=0.5,
)
FULL.at.FromDatetime(datetime(2026, 1, 2, 3, 4, 5, 678_000))
FULL.took.FromTimedelta(timedelta(seconds=1.5))
FULL.note.value = "n"
ROW = (
    -5,
    "",
    2.5,
    [("ü",), ("",)],
    {"a": 4_000_000_000},
    "PAID",
    datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC),
    timedelta(seconds=1.5),
    Decimal(2**64 - 1),
    b"\0\xff",
    [-1, 1],
    ("n",),
    True,
    0.5,
)
EMPTY = (0, None, 0.0, [], {}, "NEW", None, None, Decimal(0), b"", [], None, False, 0.0)


def read(
    data: bytes | None, description: bytes = ORDER, message: str = "shop.Order", framed: bool = False
) -> Any:
    return reader(description, message, framed=framed)(data)


def test_every_kind_of_field() -> None:
    assert read(FULL.SerializeToString()) == ROW
    assert read(b"") == EMPTY
    assert schema_of(ORDER, "shop.Order").simpleString() == (
        "struct<id:bigint,name:string,amount:double,lines:array<struct<name:string>>,stock:map<string,bigint>,"
        "state:string,at:timestamp,took:interval day to second,large:decimal(20,0),raw:binary,"
        "codes:array<int>,note:struct<value:string>,is_paid:boolean,share:float>"
    )


def test_a_number_that_the_enumeration_lacks_is_itself() -> None:
    assert read(b"\x30\x09")[5] == "9"


@pytest.mark.parametrize(
    "data",
    [
        b"\xff" * 40,
        FULL.SerializeToString()[:-1],
        b"\xfa\x07\x01a",  # field 127, which nobody knows
        b"\x12\x02\xff\xff",  # a text that is no UTF-8
        None,
    ],
)
def test_what_is_no_such_message(data: bytes | None) -> None:
    assert read(data) is None


def test_fields_of_a_later_version_do_no_harm() -> None:
    assert read(FULL.SerializeToString() + b"\xfa\x07\x01a") == ROW


def test_proto2_knows_what_is_required_and_what_is_set() -> None:
    assert read(b"\x08\x01\x10\x02", OLD, "Old") == (1, 2)
    assert read(b"\x08\x01", OLD, "Old") == (1, None)
    assert read(b"\x10\x02", OLD, "Old") is None
    assert read(b"", OLD, "Old") is None


@pytest.mark.parametrize("where", [b"\0", b"\x02\x00", b"\x04\x02\x80\x01"])
def test_what_clients_of_a_registry_put_before_a_message(where: bytes) -> None:
    data = FULL.SerializeToString()
    assert read(b"\0\0\0\0\x07" + where + data, framed=True) == ROW
    assert read(data, framed=True) is None
    assert read(b"\0\0\0\0\x07" + where[:-1], framed=True) is None


def test_a_description_comes_as_a_set_a_file_or_base64_of_these() -> None:
    one = file().SerializeToString()
    for data in (one, base64.b64encode(one), base64.b64encode(ORDER), ORDER):
        assert description_of(data) == ORDER
    alone = FileDescriptorSet(file=[file()])
    for module in (timestamp_pb2, wrappers_pb2):  # as protoc --include_imports has it
        module.DESCRIPTOR.CopyToProto(alone.file.add())
    assert read(FULL.SerializeToString(), description_of(alone.SerializeToString())) == ROW


def test_names_and_descriptions_that_cannot_be() -> None:
    assert read(b"", message="Order") == EMPTY  # there is one of that name only
    with pytest.raises(ConfigError, match=r"message = 'Odrer'.*shop\.Order, shop\.Order\.Line, shop\.Tree"):
        schema_of(ORDER, "Odrer")
    with pytest.raises(ConfigError, match="does not contain itself"):
        schema_of(ORDER, "Tree")
    for data in (b"", b"syntax = 'proto3';", b"\xff"):
        with pytest.raises(ConfigError, match="descriptor_set_out"):
            description_of(data)
    lacking = file()
    lacking.dependency.append("other.proto")
    with pytest.raises(ConfigError, match=r"all that it imports.*other\.proto"):
        schema_of(description_of(lacking.SerializeToString()), "Order")


def test_a_reader_goes_to_other_processes() -> None:
    assert pickle.loads(pickle.dumps(schema_of(ORDER, "Order")))
    from pyspark import cloudpickle

    assert pickle.loads(cloudpickle.dumps(reader(ORDER, "Order", framed=False)))(b"") == EMPTY


def test_decoded_by_a_descriptor_file(spark: SparkSession, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "shop.desc"
    path.write_bytes(FileDescriptorSet(file=[file()]).SerializeToString())
    bodies = [FULL.SerializeToString(), b"", b"\xff" * 9, None]
    frame = spark.createDataFrame([(at, body) for at, body in enumerate(bodies)], "at int, body binary")
    found = (
        decoded(frame, str(path), form="protobuf", message="shop.Order", bad="dlq").orderBy("at").collect()
    )
    assert [row.decodeError for row in found] == [
        None,
        None,
        "the body does not fit the protobuf schema",
        None,
    ]
    assert [row.value is None for row in found] == [False, False, True, True]
    value = found[0].value.asDict(recursive=True)
    assert value["lines"] == [{"name": "ü"}, {"name": ""}]
    assert (value["stock"], value["state"], value["large"]) == (
        {"a": 4_000_000_000},
        "PAID",
        Decimal(2**64 - 1),
    )
    assert value["took"] == timedelta(seconds=1.5)
    assert found[0].value.at.timestamp() == ROW[6].timestamp()  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="a descriptor file"):
        decoded(frame, str(tmp_path / "none"), form="protobuf", message="Order")
