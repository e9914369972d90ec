"""Only the columns that a query uses: `count()` of a topic makes one small column, not eighteen.

Spark tells a source in Python its filters, but not the columns of a query. So a rule in Spark's optimizer,
`narrowing.java`, replaces the scan of a read by one whose tasks make the used columns. The plan of the read
stays as it was: the ranges of a DataFrame are the same in all its queries.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from importlib import resources
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

log = logging.getLogger(__name__)

_RULE: Final = "rmq.spark.Narrowing"
"""Its name in Spark: with it in spark.sql.optimizer.excludedRules reads make all columns."""


def narrow_reads(spark: SparkSession, sources: tuple[str, ...]) -> bool:
    """Have the reads of these sources make only the columns that a query uses, in this session. Return false,
    after a line in the log, if this Spark cannot: its reads make all columns then."""
    try:
        experimental = spark._jsparkSession.experimental()
        rules = experimental.extraOptimizations()
        if all(rules.apply(at).getClass().getName() != _RULE for at in range(rules.size())):
            getattr(experimental, "extraOptimizations_$eq")(rules.appended(_compiled(spark, sources)))
    except Exception as error:  # of Java or of py4j: another Spark, which lacks a class
        log.info("reads make all columns, since this Spark does not take the rule: %s", error)
        return False
    return True


def _compiled(spark: SparkSession, sources: tuple[str, ...]) -> Any:
    context: Any = spark.sparkContext
    java, gateway = context._jvm, context._gateway
    compiler = java.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(java.java.lang.Thread.currentThread().getContextClassLoader())
    compiler.cook(resources.files(__package__).joinpath("narrowing.java").read_text("utf-8"))
    arguments = gateway.new_array(java.java.lang.Object, 2)
    arguments[0], arguments[1] = java.java.util.ArrayList(), f"{__name__}\n{narrowed.__name__}"
    for source in sources:
        arguments[0].add(source)
    return compiler.getClassLoader().loadClass(_RULE).getConstructors()[0].newInstance(arguments)


def narrowed(command: bytes, names: str) -> tuple[Callable[..., Any], StructType]:
    """The function of a read and its schema, from Spark's pickle of them, for fewer columns (a name a line).

    Called in a task, by the pickle that the rule makes.
    """
    from pyspark.serializers import CPickleSerializer
    from pyspark.sql.types import StructType

    pickles: Any = CPickleSerializer()
    read, schema = pickles.loads(command)
    few = StructType([schema[name] for name in names.split("\n")])
    variables = dict(zip(read.__code__.co_freevars, read.__closure__ or (), strict=True))
    if not {"reader", "return_type"} <= variables.keys():  # of another Spark

        def selected(parts: Iterable[Any]) -> Iterator[pa.RecordBatch]:
            return (batch.select(few.names) for batch in read(parts))

        return selected, few
    variables["reader"].cell_contents = variables["reader"].cell_contents.narrowed(few)
    variables["return_type"].cell_contents = few
    return read, few
