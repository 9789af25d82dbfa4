"""The options of `Producer` and `Consumer` by name, for type checkers.

They are the fields of `Config`, which checks and documents them; a test compares the two.  Where
``Config`` has a duration as a number of seconds, a text such as ``"1m30s"`` is accepted too.
"""

from __future__ import annotations

import ssl
from typing import TypedDict


class Options(TypedDict, total=False):
    """Keyword arguments of ``Producer`` and ``Consumer``; see docs/client.md."""

    # Identity
    client_id: str
    hostname: str
    user_agent: str
    topology_region: str
    topology_zone: str
    # Connection
    dial_timeout: float | str
    read_timeout: float | str
    write_timeout: float | str
    heartbeat_interval: float | str
    reconnect_delay: float | str
    max_reconnect_delay: float | str
    output_buffer_size: int
    output_buffer_timeout: float | str
    max_msg_size: int
    # Security
    tls_v1: bool
    tls_context: ssl.SSLContext | None
    tls_root_ca_file: str
    tls_cert: str
    tls_key: str
    tls_insecure_skip_verify: bool
    tls_min_version: str
    auth_secret: str
    lookupd_authorization: bool
    # Compression
    snappy: bool
    deflate: bool
    deflate_level: int
    # Discovery
    lookupd_poll_interval: float | str
    lookupd_poll_jitter: float
    lookupd_poll_timeout: float | str
    # Consumer
    max_in_flight: int
    concurrency: int
    threads: int
    batch_size: int
    batch_timeout: float | str
    max_attempts: int
    default_requeue_delay: float | str
    max_requeue_delay: float | str
    msg_timeout: float | str
    auto_touch: bool
    sample_rate: int
    start: str
    backoff_strategy: str
    max_backoff_duration: float | str
    backoff_multiplier: float | str
    low_rdy_idle_timeout: float | str
    low_rdy_timeout: float | str
    rdy_redistribute_interval: float | str
    # Stopping
    stop_timeout: float | str
    # Producer
    publish_timeout: float | str
    response_timeout: float | str
    publish_retries: int
    retry_unknown: bool
    max_pending_size: int
    batch_publish_count: int
    batch_publish_size: int
    batch_publish_timeout: float | str
