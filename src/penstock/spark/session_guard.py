"""Makes a session safe for several queries that start at once.

The JVM has one environment for the Python code of a data source: a map without a guard, into
which every query puts the same four names when it starts.  Two that do so at the same moment can
break it, and then every query of this JVM fails: "Illegal size 5 of collection, expected 6".  A
name that is there already is only given its value again, which breaks nothing; so they are put
there before.
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
    """Call it once for a session that somebody else opened, before its first query."""
    try:
        manager = spark._jsparkSession.sessionState().dataSourceManager()
        environment = manager.lookupDataSource(SOURCE).dataSourceCls().envVars()
        conf = spark.sparkContext._jsc.sc().conf()
        timeout_s = conf.getTimeAsSeconds("spark.python.authenticate.socketTimeout", "15s")
        buffer_size = conf.getSizeAsBytes("spark.buffer.size", "65536")
        # What Spark would put there, or does when the first query starts.
        environment.put("SPARK_LOCAL_DIRS", conf.get("spark.local.dir", tempfile.gettempdir()))
        environment.put("SPARK_AUTH_SOCKET_TIMEOUT", str(timeout_s))
        environment.put("SPARK_BUFFER_SIZE", str(buffer_size))
        environment.put("SPARK_PYTHON_RUNTIME", "PYTHON_WORKER")
    except (Py4JError, PySparkAttributeError):
        return  # Spark Connect, or a Spark that is made otherwise: it works, with its own risk
