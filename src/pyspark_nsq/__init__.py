"""Where Spark finds the data source ``nsq``: it imports every module named ``pyspark_*``.

One that fails, or is slow, spoils every Python data source of a session.  So nothing is imported
here before Spark asks for ``DefaultSource``; if something is missing then, only this source is.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from penstock.spark.source import NsqDataSource as DefaultSource

__all__ = ["DefaultSource"]


def __getattr__(name: str) -> object:
    if name == "DefaultSource":
        try:
            from penstock.spark.source import NsqDataSource
        except ImportError as error:
            raise AttributeError(f"the data source nsq is not usable: {error}") from error
        return NsqDataSource
    raise AttributeError(f"module 'pyspark_nsq' has no attribute {name!r}")
