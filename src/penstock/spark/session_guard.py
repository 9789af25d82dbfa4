"""Makes a session safe for several queries that start at once.

The JVM has one environment for the Python code of a data source: a map without a lock, in which
every query sets the same four keys when it starts.  Two that insert at the same moment can corrupt
it, and then every query of this JVM fails: "Illegal size 5 of collection, expected 6".  Setting an
existing key is safe, so this module inserts the keys first.
"""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError
from pyspark.errors import PySparkAttributeError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SOURCE = "nsq"


def share(spark: SparkSession) -> None:
    """Call once before a session's first query, if ``open_session`` did not open it."""
    try:
        manager = spark._jsparkSession.sessionState().dataSourceManager()
        environment = manager.lookupDataSource(SOURCE).dataSourceCls().envVars()
        conf = spark.sparkContext._jsc.sc().conf()
        timeout_s = conf.getTimeAsSeconds("spark.python.authenticate.socketTimeout", "15s")
        buffer_size = conf.getSizeAsBytes("spark.buffer.size", "65536")
        # The same values that Spark sets when a query starts.
        environment.put("SPARK_LOCAL_DIRS", conf.get("spark.local.dir", tempfile.gettempdir()))
        environment.put("SPARK_AUTH_SOCKET_TIMEOUT", str(timeout_s))
        environment.put("SPARK_BUFFER_SIZE", str(buffer_size))
        environment.put("SPARK_PYTHON_RUNTIME", "PYTHON_WORKER")
    except (Py4JError, PySparkAttributeError):
        return  # Spark Connect, or another Spark: works without this protection
