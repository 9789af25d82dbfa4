"""``_common_metadata``: all columns of a Parquet table, in Parquet's own format, beside its files.

A file of the table has the columns of its batch.  A reader that takes the columns of the first file
misses those added later.  Spark reads this file first, so it sees all of them; other readers can be
given its schema.  It also has the partition columns: a reader that is given a schema shows only the
columns in it.

It is written before the first file with a new column, and never loses a column.
"""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock.pipeline.folders import Folder

if TYPE_CHECKING:
    from pyspark.sql.types import StructField, StructType

log = logging.getLogger("penstock.pipeline")

NAME = "_common_metadata"
# Readers take names with this prefix for the file itself, so it is written elsewhere.
NEW = "_penstock/summary"
SPARK_KEY = b"org.apache.spark.sql.parquet.row.metadata"


def update_summary(folder: Folder, known: Mapping[str, str], schema: StructType) -> None:
    """Write it with the columns of ``schema`` and, if it is new, the table's ``known`` ones."""
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructField, StructType

    stored = folder.read(NAME)
    try:
        found = _declared(known) if stored is None else _fields(stored)
        fields = {field.name: field for field in found}
        for field in schema.fields:
            fields.setdefault(field.name, StructField(field.name, field.dataType, True))
        data = encode(StructType(list(fields.values())))
    except (PySparkException, ValueError, KeyError, TypeError, OSError) as error:
        # A summary without a column would be worse than none.
        folder.remove(NAME)
        log.warning("%s: no %s: %s", folder.uri, NAME, str(error).strip().partition("\n")[0])
        return
    if data != stored:
        folder.write(NEW, data)
        folder.move(NEW, NAME)


def encode(schema: StructType) -> bytes:
    """A Parquet file without rows."""
    import pyarrow.parquet as pq
    from pyspark.sql.pandas.types import to_arrow_schema

    arrow = to_arrow_schema(schema, timezone="UTC")
    sink = io.BytesIO()
    pq.write_metadata(arrow.with_metadata({SPARK_KEY: schema.json().encode()}), sink)
    return sink.getvalue()


def _fields(data: bytes) -> list[StructField]:
    import pyarrow.parquet as pq
    from pyspark.sql.types import StructType

    metadata = pq.read_schema(io.BytesIO(data)).metadata
    return list(StructType.fromJson(json.loads(metadata[SPARK_KEY])).fields)


def _declared(known: Mapping[str, str]) -> list[StructField]:
    """The columns of a table created before there was a summary."""
    from pyspark.sql.types import StructType

    text = ", ".join(f"`{name.replace('`', '``')}` {kind}" for name, kind in known.items())
    schema = StructType.fromDDL(text) if text else StructType()
    return list(schema.fields) if isinstance(schema, StructType) else []
