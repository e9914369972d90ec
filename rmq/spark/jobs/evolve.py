"""Evolution of a table's schema: the changes that a batch needs, and the rule for allowed changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from attrs import frozen

from rmq.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructField, StructType

_RANKS: Final = ({"tinyint": 0, "smallint": 1, "int": 2, "bigint": 3}, {"float": 0, "double": 1})


@frozen
class Evolution:
    """Columns that a table lacks, and columns that need a wider type."""

    added: tuple[StructField, ...] = ()
    widened: tuple[StructField, ...] = ()


def evolution(table: StructType, batch: StructType, rule: str, name: str) -> Evolution:
    """The changes that the rows of a batch need. `rule`: `fail`: none; `add`: new columns; `widen`: these,
    and numbers with more digits. Columns that the batch lacks stay, and are null in its rows. Raises
    ConfigError that names the stream and the column."""
    known = {one.name: one for one in table.fields}
    added, widened = [], []
    for one in batch.fields:
        if one.name not in known:
            if rule == "fail":
                raise ConfigError(
                    f"streams.{name}.evolve", rule, f"add: the table has no column {one.name}, and rows have"
                )
            added.append(one)
            continue
        old, new = known[one.name].dataType, one.dataType
        if old.simpleString() == new.simpleString() or is_wider(old, new):
            continue
        if rule != "widen" or not is_wider(new, old):
            hint = "widen" if is_wider(new, old) else "a select that casts it"
            types = f"{old.simpleString()} in the table and {new.simpleString()} in rows"
            raise ConfigError(f"streams.{name}.evolve", rule, f"{hint}: column {one.name} is {types}")
        widened.append(one)
    return Evolution(tuple(added), tuple(widened))


def is_wider(first: DataType, second: DataType) -> bool:
    """True if the first type holds all values of the second, and differs from it."""
    from pyspark.sql.types import DecimalType

    if isinstance(first, DecimalType) and isinstance(second, DecimalType):
        return first.scale == second.scale and first.precision > second.precision
    names = first.simpleString(), second.simpleString()
    return any(all(name in ranks for name in names) and ranks[names[0]] > ranks[names[1]] for ranks in _RANKS)
