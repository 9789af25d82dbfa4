"""A pipeline in Python: clicks per minute and page, with a DataFrame function, as a Delta table.

penstock up --demo                                  # in another terminal
penstock pipeline run examples/pipelines/sessions.py --folder=data
"""

from penstock.pipeline import DeltaSink, Pipeline, Source, Transform


def per_minute(clicks):
    from pyspark.sql import functions as F

    window = F.window("nsq_timestamp", "1 minute")
    counted = clicks.groupBy(window, "page").agg(
        F.count("*").alias("clicks"), F.approx_count_distinct("customer").alias("customers")
    )
    return counted.select(F.col("window.start").alias("minute"), "page", "clicks", "customers")


pipeline = Pipeline(
    name="sessions",
    sources={
        "input": Source(
            topics=("clicks",),
            lookupd_http_addresses=("127.0.0.1:4161",),
            body="json",
            schema="page string NOT NULL, customer string",
            watermark="30 seconds",
        )
    },
    transforms=(Transform(dataframe=per_minute),),
    sinks=(DeltaSink(path="sessions-table"),),
)
