"""Parses message bodies into columns: JSON with a schema, and the reason if one does not match.

Spark's from_json accepts too much: it stops after the first object and ignores what follows, and it
accepts 'single quotes' and bytes that are not UTF-8.  So the body is parsed as the only field of an
object, {"r":<body>}: then anything after the first value is an error.

Spark does not report what was wrong either.  ``explain`` does, in Python, for the few invalid ones.
"""

from __future__ import annotations

import datetime
import json
from typing import TYPE_CHECKING, Any

from penstock.errors import PipelineError
from penstock.pipeline.spec import MESSAGE_COLUMNS, PREFIX

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType

PARSED = "_parsed"
# Names that a field of a body cannot have: they are columns of the message.
RESERVED = (*(PREFIX + column for column in MESSAGE_COLUMNS), PARSED)
OPTIONS = {
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": "_wrong",
    "allowSingleQuotes": "false",
}
SAMPLE_COUNT = 1000
VALUE_SIZE_MAX = 80


def schema_of(text: str) -> StructType:
    """The schema of a DDL text such as ``id bigint NOT NULL, total double``."""
    from pyspark.errors import ParseException
    from pyspark.sql.types import StructType

    try:
        schema = StructType.fromDDL(text)
    except ParseException as error:
        raise PipelineError(f"schema {text!r}: {str(error).strip().splitlines()[0]}") from None
    if not isinstance(schema, StructType):
        raise PipelineError(f"schema {text!r}: must be columns, as in CREATE TABLE")
    for name in schema.names:
        if name in RESERVED:
            raise PipelineError(f"schema: the name {name} is reserved for the message")
    return schema


def parse_json(messages: DataFrame, schema: StructType) -> DataFrame:
    """Add the column ``_parsed``: a struct of ``r`` (the fields) and ``valid``."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import StringType, StructField, StructType

    loose = StructType([StructField(f.name, f.dataType, True) for f in schema.fields])
    wrapped = StructType([StructField("r", loose), StructField("_wrong", StringType())])
    text = F.concat(F.lit('{"r":'), F.col("body").cast("string"), F.lit("}"))
    parsed = messages.withColumn(PARSED, F.from_json(text, wrapped, OPTIONS))
    fields = F.col(PARSED)
    valid = fields["r"].isNotNull() & fields["_wrong"].isNull() & F.expr("is_valid_utf8(body)")
    for field in schema.fields:
        if not field.nullable:
            valid = valid & fields["r"][field.name].isNotNull()
    return parsed.withColumn(PARSED, F.struct(fields["r"].alias("r"), valid.alias("valid")))


def is_valid() -> Column:
    from pyspark.sql import functions as F

    return F.col(PARSED)["valid"]


def json_columns(parsed: DataFrame, schema: StructType) -> DataFrame:
    """The fields of the body, and the message's own columns with a prefix."""
    from pyspark.sql import functions as F

    fields = [F.col(PARSED)["r"][field.name].alias(field.name) for field in schema.fields]
    own = [F.col(name).alias(PREFIX + name) for name in MESSAGE_COLUMNS if name != "body"]
    return parsed.select(*fields, *own)


def infer_schema(spark: SparkSession, messages: DataFrame) -> StructType:
    """Infer it from the first available messages, as Spark does for JSON files."""
    bodies = [bytes(row["body"]) for row in messages.select("body").limit(SAMPLE_COUNT).collect()]
    texts = [text for text in map(_object_text, bodies) if text is not None]
    if not texts:
        raise PipelineError(
            f'[source] schema = "infer": none of {len(bodies)} messages is a JSON object; '
            "publish one first, or declare the schema"
        )
    lines = spark.sparkContext.parallelize(texts, 1)
    return spark.read.json(lines).schema


def _object_text(body: bytes) -> str | None:
    try:
        found = json.loads(body)
    except ValueError:
        return None
    return json.dumps(found) if isinstance(found, dict) else None


def explain(body: bytes, schema: StructType) -> str:
    """Why a body does not match the schema, as text."""
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        return f"not UTF-8: byte 0x{body[error.start]:02x} at {error.start}"
    if not text.strip():
        return "empty"
    try:
        found = json.loads(text)
    except ValueError as error:
        return f"not JSON: {error}"
    if not isinstance(found, dict):
        return f"{_named(found)}, not an object"
    for field in schema.fields:
        value = found.get(field.name)
        if value is None and not field.nullable:
            return f"{field.name}: {'null' if field.name in found else 'missing'}"
        if reason := _mismatch(value, field.dataType, field.name):
            return reason
    return "does not match the schema"


def _mismatch(value: Any, kind: DataType, path: str) -> str:
    from pyspark.sql import types as T

    if value is None:
        return ""
    match kind:
        case T.StructType():
            if not isinstance(value, dict):
                return _refusal(value, path, "object")
            inner = [_mismatch(value.get(f.name), f.dataType, f"{path}.{f.name}") for f in kind]
        case T.ArrayType():
            if not isinstance(value, list):
                return _refusal(value, path, "list")
            inner = [_mismatch(v, kind.elementType, f"{path}[{n}]") for n, v in enumerate(value)]
        case T.MapType():
            if not isinstance(value, dict):
                return _refusal(value, path, "object")
            inner = [_mismatch(v, kind.valueType, f"{path}.{k}") for k, v in value.items()]
        case _:
            fits = _fits(value, kind)
            return "" if fits else _refusal(value, path, kind.simpleString())
    return next(filter(None, inner), "")


def _fits(value: Any, kind: DataType) -> bool:
    """Whether Spark would accept a single value; True where that is not known."""
    from pyspark.sql import types as T

    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if isinstance(kind, T.IntegralType):
        bits = {"tinyint": 8, "smallint": 16, "int": 32}.get(kind.simpleString(), 64)
        whole = isinstance(value, int) and not isinstance(value, bool)
        return whole and -(1 << bits - 1) <= value < 1 << bits - 1
    match kind:
        case T.DoubleType() | T.FloatType():
            return number or value in ("NaN", "Infinity", "-Infinity", "INF", "-INF", "+INF")
        case T.DecimalType():
            return number or isinstance(value, str)
        case T.BooleanType():
            return isinstance(value, bool)
        case T.TimestampType() | T.TimestampNTZType() | T.DateType():
            return number or (isinstance(value, str) and _is_time(value))
    return True


def _is_time(text: str) -> bool:
    try:
        datetime.datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


def _refusal(value: Any, path: str, kind: str) -> str:
    return f"{path}: {_named(value)} is not of type {kind}"


def _named(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    short = text if len(text) <= VALUE_SIZE_MAX else f"{text[:VALUE_SIZE_MAX]}..."
    return f"list {short}" if isinstance(value, list) else short
