"""Entry point of the data source ``nsq``: Spark imports every module named ``pyspark_*``.

A module that fails or is slow affects every Python data source of a session.  So nothing is
imported before Spark reads ``DefaultSource``; if that import fails, only this source is missing.
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
