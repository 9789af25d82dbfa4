"""The options of nsqd: one table, all of NSQ's flags with NSQ's defaults, and ours.

Attributes have the option's name in NSQ's config file; durations end in ``_ns`` and are integer
nanoseconds, lists are tuples.  ``option=`` and ``flag=`` are given where NSQ's names differ from
one another.  Ranges are wider than useful wherever NSQ would start with such a value.
"""

from __future__ import annotations

import dataclasses

from penstock.errors import OptionError
from penstock.settings.daemon import (
    TLS_VERSIONS,
    checked_tls,
    hostname,
    log_format,
    log_level,
    log_prefix,
    tls_client_auth_policy,
    tls_required,
)
from penstock.settings.kinds import Float, Listed, SetInt, format_float
from penstock.settings.table import (
    boolean,
    choice,
    duration,
    integer,
    number,
    row,
    settings_of,
    string,
    strings,
)
from penstock.wire.ids import NODE_ID_COUNT, default_node_id

LISTEN = "Listening and identity"
CLUSTER = "Cluster"
STORAGE = "Storage"
MESSAGES = "Messages"
CLIENTS = "Clients"
SCAN = "Deadlines"
TLS = "TLS and compression"
AUTH = "Authorization"
STATS = "Statistics"

# A frame's size is read as a signed 32-bit integer by clients, and is the body's plus 30.
BODY_SIZE_MAX = 2**31 - 1
MESSAGE_SIZE_MAX = BODY_SIZE_MAX - 30

# --disk-low-watermark if it is not set; then publishes are not refused below it.
LOW_PERCENT = 5

# With ports 100 apart from 4150 on, all of them are below those that the kernel assigns (32768).
PROCESS_COUNT_MAX = 256


def hostname_node_id() -> int:
    return default_node_id(hostname())


@dataclasses.dataclass(frozen=True, slots=True)
class Options:
    """The options of nsqd.  ``checked`` validates their combination."""

    tcp_address: str = string(
        LISTEN, "0.0.0.0:4150", "address:port for TCP clients, or the path of a unix socket"
    )
    http_address: str = string(
        LISTEN, "0.0.0.0:4151", "address:port for HTTP, or the path of a unix socket; empty: none"
    )
    https_address: str = string(
        LISTEN, "0.0.0.0:4152", "address:port for HTTPS; used when there is a certificate"
    )
    broadcast_address: str = string(
        LISTEN,
        hostname,
        "address that this node announces to nsqlookupd",
        default_text="the hostname",
    )
    broadcast_tcp_port: int = integer(
        LISTEN, 0, "TCP port to announce; 0: the port nsqd listens on", minimum=0, maximum=65535
    )
    broadcast_http_port: int = integer(
        LISTEN, 0, "HTTP port to announce; 0: the port nsqd listens on", minimum=0, maximum=65535
    )
    node_id: int = integer(
        LISTEN,
        hostname_node_id,
        "node number, part of every message id; must be unique in the cluster",
        minimum=0,
        maximum=NODE_ID_COUNT - 1,
        checked=False,
        default_text="a hash of the hostname",
        option="id",
        flag="node-id",
    )
    processes: int = integer(
        LISTEN,
        1,
        "nsqd processes: ports 100 apart, folders node-0... in -data-path, consecutive node ids",
        minimum=1,
        maximum=PROCESS_COUNT_MAX,
        own=True,
    )

    nsqlookupd_tcp_addresses: tuple[str, ...] = strings(
        CLUSTER, "address:port of an nsqlookupd to register with", flag="lookupd-tcp-address"
    )
    lookupd_tls: bool = boolean(CLUSTER, False, "connect to nsqlookupds over TLS only", own=True)
    lookupd_tls_root_ca_file: str = string(
        CLUSTER,
        "",
        "CA certificates to verify nsqlookupds with (PEM file); empty: the system's",
        own=True,
    )
    lookupd_tls_cert: str = string(
        CLUSTER, "", "client certificate for nsqlookupds (PEM file)", own=True
    )
    lookupd_tls_key: str = string(
        CLUSTER, "", "private key of -lookupd-tls-cert (PEM file)", own=True
    )
    max_lookupd_channels: int = integer(
        CLUSTER,
        1000,
        "most channels to create for a new topic from one nsqlookupd's answer",
        minimum=1,
        maximum=100_000,
        own=True,
    )
    http_client_connect_timeout_ns: int = duration(
        CLUSTER, "2s", "timeout for connecting to nsqlookupd and the auth server", minimum="1ns"
    )
    http_client_request_timeout_ns: int = duration(
        CLUSTER, "5s", "timeout for a request to nsqlookupd and the auth server", minimum="1ns"
    )
    topology_region: str = string(CLUSTER, "", "region of this node")
    topology_zone: str = string(CLUSTER, "", "zone of this node, within its region")
    enable_experiment: tuple[str, ...] = strings(
        CLUSTER, "NSQ experiment to enable: topology-aware-consumption"
    )

    data_path: str = string(
        STORAGE,
        "",
        "folder for messages and metadata; it must exist",
        default_text="the current folder",
    )
    mem_queue_size: int = integer(
        STORAGE,
        10_000,
        "messages an ephemeral topic or channel keeps; any depth above it counts as backend_depth",
        minimum=0,
    )
    mem_queue_bytes: int = integer(
        STORAGE,
        64 << 20,
        "bytes an ephemeral topic or channel keeps; all of them together keep eight times that",
        minimum=1,
        own=True,
    )
    max_bytes_per_file: int = integer(
        STORAGE, 104_857_600, "size of a log segment, in bytes", minimum=1
    )
    sync_every: int = integer(
        STORAGE,
        2500,
        "messages between syncs of a topic's log; 1: sync before each OK",
        minimum=1,
    )
    sync_timeout_ns: int = duration(
        STORAGE, "2s", "longest time before written messages are synced", minimum="1ns"
    )

    policy_file: str = string(
        STORAGE,
        "",
        "TOML file of policies for topics and channels; read again on SIGHUP",
        own=True,
    )
    disk_low_watermark: int | None = row(
        SetInt(0, 99, LOW_PERCENT),
        STORAGE,
        None,
        "percent of the disk to keep free of retained messages; if set, of publishes too; 0: off",
        default_text="5, for publishes 0",
        own=True,
    )

    staging_timeout_ns: int = duration(
        STORAGE,
        "24h",
        "time after which staged but unpublished rows are dropped",
        minimum="1s",
        own=True,
    )
    max_staging_bytes: int = integer(
        STORAGE, 10 << 30, "most bytes of staged rows on this node", minimum=1, own=True
    )

    max_msg_size: int = integer(
        MESSAGES, 1_048_576, "largest message, in bytes", minimum=1, maximum=MESSAGE_SIZE_MAX
    )
    max_body_size: int = integer(
        MESSAGES,
        5_242_880,
        "largest MPUB body, in bytes; also limits IDENTIFY and AUTH if below 64 KiB and 8 KiB",
        minimum=1,
        maximum=BODY_SIZE_MAX,
    )
    max_unfinished_body_bytes: int = integer(
        MESSAGES,
        64 << 20,
        "bytes of partly received bodies, over all connections; above it the newest wait",
        minimum=1,
        own=True,
    )
    msg_timeout_ns: int = duration(
        MESSAGES, "1m", "time a client has to finish a message before it is requeued", minimum="1ns"
    )
    max_msg_timeout_ns: int = duration(
        MESSAGES,
        "15m",
        "longest time a message may stay in flight, including TOUCH",
        minimum="1ns",
    )
    max_req_timeout_ns: int = duration(
        MESSAGES, "1h", "longest delay of REQ; longer ones are shortened to it"
    )
    max_defer_ns: int = duration(
        MESSAGES,
        "365d",
        "longest delay of DPUB and defer= over HTTP; NSQ uses -max-req-timeout",
        own=True,
    )
    requeue_on_disconnect: bool = boolean(
        MESSAGES,
        True,
        "requeue a disconnected client's messages at once; false: after their timeout, as NSQ does",
        own=True,
    )

    pull_channel_lapse_ns: int = duration(
        MESSAGES,
        "168h",
        "delete a pull channel whose reader has been away this long; 0: never",
        own=True,
    )
    pull_channel_lapse_bytes: int = integer(
        MESSAGES,
        0,
        "delete a pull channel whose reader is away and that retains this many bytes; 0: never",
        minimum=0,
        own=True,
    )

    max_heartbeat_interval_ns: int = duration(
        CLIENTS, "1m", "longest heartbeat interval a client may request", minimum="1ms"
    )
    max_rdy_count: int = integer(CLIENTS, 2500, "largest ready count (RDY) of a client", minimum=1)
    max_output_buffer_size: int = integer(
        CLIENTS, 65_536, "largest output buffer a client may request, in bytes", minimum=64
    )
    output_buffer_timeout_ns: int = duration(
        CLIENTS, "250ms", "default time before buffered output is sent to a client"
    )
    max_output_buffer_timeout_ns: int = duration(
        CLIENTS, "30s", "longest output buffer timeout a client may request"
    )
    min_output_buffer_timeout_ns: int = duration(
        CLIENTS, "25ms", "shortest output buffer timeout a client may request"
    )
    client_write_timeout_ns: int = duration(
        CLIENTS,
        "1m",
        "disconnect a client that has accepted no data for this long",
        minimum="100ms",
        own=True,
    )
    busy_poll: bool = boolean(
        CLIENTS,
        False,
        "keep a core busy while a lone client sends one command after the other, for its latency",
        own=True,
    )
    max_channel_consumers: int = integer(
        CLIENTS, 0, "most clients of a channel on this node; 0: no limit", minimum=0
    )

    queue_scan: str = choice(
        SCAN,
        "deadline",
        "how due messages are found: in deadline order, or by sampling as NSQ does",
        ("deadline", "sample"),
        own=True,
    )
    queue_scan_interval_ns: int = duration(
        SCAN, "100ms", "time between scans of -queue-scan=sample", minimum="1ms", own=True
    )
    queue_scan_refresh_interval_ns: int = duration(
        SCAN,
        "5s",
        "time between refreshes of the channel list of -queue-scan=sample",
        minimum="1ms",
        own=True,
    )
    queue_scan_selection_count: int = integer(
        SCAN, 20, "channels checked in a scan of -queue-scan=sample", minimum=1
    )
    queue_scan_worker_pool_max: int = integer(
        SCAN,
        4,
        "most scan workers of -queue-scan=sample; one for every four channels up to this",
        minimum=1,
    )
    queue_scan_dirty_percent: float = number(
        SCAN,
        0.25,
        "fraction of channels with due messages above which -queue-scan=sample rescans at once",
        minimum=0.0,
        maximum=1.0,
        own=True,
    )

    tls_cert: str = string(TLS, "", "certificate (PEM file); enables TLS and HTTPS")
    tls_key: str = string(TLS, "", "private key of the certificate (PEM file)")
    tls_root_ca_file: str = string(
        TLS, "", "CA certificates to verify clients and the auth server with (PEM file)"
    )
    tls_client_auth_policy: str = tls_client_auth_policy(TLS, "clients")
    tls_required: str = tls_required(TLS, "clients")
    tls_min_version: str = choice(
        TLS, "tls1.0", "oldest TLS version to accept", TLS_VERSIONS, aliases={"": "tls1.0"}
    )
    deflate: bool = boolean(TLS, True, "let clients negotiate deflate")
    max_deflate_level: int = integer(
        TLS, 6, "highest deflate level a client may request", minimum=1, maximum=9, checked=False
    )
    snappy: bool = boolean(TLS, True, "let clients negotiate snappy")

    auth_http_addresses: tuple[str, ...] = strings(
        AUTH, "address:port or URL of an auth server", flag="auth-http-address"
    )
    auth_http_request_method: str = string(
        AUTH, "get", "HTTP method for the auth server: get or post"
    )

    http_auth_token_file: str = string(
        AUTH,
        "",
        "file of HTTP tokens; each line is a role (publish, read, metrics, admin) and a token",
        own=True,
    )
    allowed_hosts: tuple[str, ...] = strings(
        AUTH,
        "accept HTTP for this host: name, .domain or *; checked if set, or if tokens are in use",
        flag="allowed-host",
        own=True,
    )

    statsd_address: str = string(STATS, "", "address:port (UDP) of a statsd daemon; empty: none")
    statsd_prefix: str = string(
        STATS, "nsq.%s", "prefix of statsd keys; %s stands for the broadcast address and HTTP port"
    )
    statsd_interval_ns: int = duration(STATS, "1m", "time between pushes to statsd", minimum="1ns")
    statsd_mem_stats: bool = boolean(STATS, True, "push memory statistics to statsd")
    statsd_udp_packet_size: int = integer(
        STATS, 508, "largest packet to statsd, in bytes", minimum=1, maximum=65_507
    )
    statsd_exclude_ephemeral: bool = boolean(
        STATS, False, "leave ephemeral topics and channels out of statsd"
    )
    e2e_processing_latency_percentiles: tuple[float, ...] = row(
        Listed(Float(checked=False), descending=True),
        STATS,
        (),
        "percentile of the time from publish to finish to report, above 0 and up to 1",
        flag="e2e-processing-latency-percentile",
    )
    e2e_processing_latency_window_time_ns: int = duration(
        STATS, "10m", "time window of those percentiles", minimum="1ms"
    )

    log_level: str = log_level()
    log_prefix: str = log_prefix("nsqd")
    log_format: str = log_format()


SETTINGS = settings_of(Options)


def checked(options: Options) -> Options:
    """Return the options nsqd starts with, or raise OptionError in NSQ's own words.

    nsqd finds these only after parsing, as ``failed to instantiate nsqd - <text>``.
    """
    if not 1 <= options.max_deflate_level <= 9:
        raise OptionError("--max-deflate-level must be [1,9]")
    if not 0 <= options.node_id < NODE_ID_COUNT:
        raise OptionError("--node-id must be [0,1024)")
    if options.auth_http_request_method not in ("get", "post"):
        raise OptionError("--auth-http-request-method must be post or get")
    options = checked_tls(options)
    _check_lookupd_tls(options)
    for percentile in options.e2e_processing_latency_percentiles:
        if not 0 < percentile <= 1:
            raise OptionError(
                f"invalid E2E processing latency percentile: {format_float(percentile)}"
            )
    return options


def _check_lookupd_tls(options: Options) -> None:
    if bool(options.lookupd_tls_cert) != bool(options.lookupd_tls_key):
        raise OptionError("--lookupd-tls-cert and --lookupd-tls-key go together")
    if (options.lookupd_tls_cert or options.lookupd_tls_root_ca_file) and not options.lookupd_tls:
        # Certificates without --lookupd-tls would be unused.
        raise OptionError("--lookupd-tls-cert and --lookupd-tls-root-ca-file need --lookupd-tls")
