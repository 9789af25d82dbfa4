"""Spark: the data source `nsq`, and what sets up Java and a session for it."""
