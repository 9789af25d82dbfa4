"""The data source ``nsq``: Spark's entry point, on the driver.

    spark.read.format("nsq")             NsqBatchReader
    spark.readStream.format("nsq")       NsqStreamReader, or ChannelStreamReader with mode=channel
    df.write.format("nsq")               NsqBatchWriter
    df.writeStream.format("nsq")         NsqStreamWriter

Each is imported on first use: Spark imports this module in every Python process it starts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import (
    BinaryType,
    DataType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock.errors import OptionError
from penstock.spark.option_kinds import COLUMNS
from penstock.spark.options import BATCH, STREAM, WRITE, Options, parse_columns, parse_options

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )

TYPES: dict[str, DataType] = {
    "topic": StringType(),
    "node": StringType(),
    "index": LongType(),
    "id": StringType(),
    "timestamp": TimestampType(),
    "body": BinaryType(),
}


class NsqDataSource(DataSource):
    """Topics of NSQ as tables and streams."""

    @classmethod
    def name(cls) -> str:
        return "nsq"

    def schema(self) -> StructType:
        # reader() or streamReader() check the other options.
        names = parse_columns(self.options)
        return StructType([StructField(name, TYPES[name]) for name in names])

    def reader(self, schema: StructType) -> DataSourceReader:
        from penstock.spark.batch import NsqBatchReader, NsqFilteringReader

        options = parse_options(self.options, BATCH)
        kind = NsqFilteringReader if options.push_filters else NsqBatchReader
        return kind(options, columns_of(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = parse_options(self.options, STREAM)
        columns = columns_of(schema)
        if options.mode == "channel":
            from penstock.spark.go_source import ChannelStreamReader

            return ChannelStreamReader(options, columns)
        from penstock.spark.stream import NsqStreamReader

        return NsqStreamReader(options, columns)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from penstock.spark.packer import Shape
        from penstock.spark.writer import NsqBatchWriter

        options = self._write_options(overwrite)
        return NsqBatchWriter(options, Shape.of(schema, options))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from penstock.spark.packer import Shape
        from penstock.spark.writer import NsqStreamWriter

        options = self._write_options(overwrite)
        location = self.options.get("checkpointLocation") or ""
        return NsqStreamWriter(options, Shape.of(schema, options), location)

    def _write_options(self, overwrite: bool) -> Options:
        if overwrite:
            raise OptionError(
                "a topic can only be appended to: write with mode append, "
                "stream with output mode append or update"
            )
        return parse_options(self.options, WRITE)


def columns_of(schema: StructType) -> tuple[str, ...]:
    """The columns of a schema, which a user may set instead of the option columns."""
    for field in schema.fields:
        wanted = TYPES.get(field.name)
        if wanted is None:
            raise OptionError(
                f"the data source nsq has no column {field.name}, only {', '.join(COLUMNS)}"
            )
        if field.dataType != wanted:
            raise OptionError(
                f"column {field.name} is {wanted.simpleString()}, not "
                f"{field.dataType.simpleString()}"
            )
    return tuple(schema.fieldNames())
