"""What a user may say to `spark.read.format("rmqstore")`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

from attrs import frozen

from rmq.config import from_text
from rmq.errors import ConfigError
from rmq.spark.options import known_options

OnCorrupt = Literal["fail", "skip", "report"]
Via = Literal["commitlog", "consumequeue"]


def _one_of(*words: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text.lower() not in words:
            raise ValueError(f"one of {', '.join(words)}")
        return text.lower()

    return read


def _positive(unit: str | None = None) -> Callable[[str], int]:
    def read(text: str) -> int:
        number: int = from_text(int, text, unit=unit)
        if number <= 0:
            raise ValueError("a number above 0")
        return number

    return read


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name for part in text.split(",") if (name := part.strip()))
    if text and not names:
        raise ValueError("at least one topic")
    return names


_BOOLEAN: Final = _one_of("true", "false")


def _boolean(text: str) -> bool:
    return _BOOLEAN(text) == "true"


@frozen(kw_only=True)
class StoreOptions:
    """The options of `rmqstore`; docs/spark.md says what they mean."""

    path: str
    topics: tuple[str, ...] = ()
    via: Via = "commitlog"
    broker_name: str = ""
    verify_crc: bool = False
    decompress: bool = True
    on_corrupt: OnCorrupt = "fail"
    chunk_bytes: int | None = None
    batch_rows: int = 16384
    batch_bytes: int = 8 << 20
    pushdown: bool = False

    @classmethod
    def of(cls, given: Mapping[str, str]) -> StoreOptions:
        """The options that Spark passes on, by their names there in any case. Raises ConfigError."""
        values: dict[str, Any] = {"path": ""}
        for name, text in given.items():
            if name.lower() not in _KNOWN:
                raise ConfigError(f"rmqstore option {name}", "***", known_options("rmqstore", name, OPTIONS))
            known = _KNOWN[name.lower()]
            field, read = OPTIONS[known]
            try:
                values[field] = read(text)
            except ValueError as error:
                raise ConfigError(f"rmqstore option {known}", text, str(error)) from None
        options = cls(**values)
        if not options.path:
            raise ConfigError("rmqstore option path", "", "the folder of a store: .load('/path/of/store')")
        if options.via == "consumequeue" and not options.topics:
            raise ConfigError("rmqstore option topic", "", "the topics to read by their consume queues")
        return options

    @property
    def may_be_null(self) -> bool:
        """Whether any column may be null: reports of damage have few."""
        return self.on_corrupt == "report"


OPTIONS: Final[dict[str, tuple[str, Callable[[str], Any]]]] = {
    "path": ("path", str),
    "topic": ("topics", _names),
    "via": ("via", _one_of("commitlog", "consumequeue")),
    "brokerName": ("broker_name", str),
    "verifyCrc": ("verify_crc", _boolean),
    "decompress": ("decompress", _boolean),
    "onCorrupt": ("on_corrupt", _one_of("fail", "skip", "report")),
    "chunkBytes": ("chunk_bytes", _positive("bytes")),
    "batchRows": ("batch_rows", _positive()),
    "batchBytes": ("batch_bytes", _positive("bytes")),
    "pushdown": ("pushdown", _boolean),
}
_KNOWN: Final = {name.lower(): name for name in OPTIONS}
