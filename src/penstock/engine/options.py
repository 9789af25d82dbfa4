"""The options of nsqd: one table, all of NSQ's flags with NSQ's defaults, and ours.

Attributes have the option's name in NSQ's config file; durations end in ``_ns`` and are integer
nanoseconds, lists are tuples.  ``option=`` and ``flag=`` stand where NSQ's names differ from one
another.  Ranges are wider than sense wherever NSQ would start with such a value.
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
from penstock.settings.kinds import Float, Listed, format_float
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

# With ports 100 apart from 4150 on, all of them lie below those the kernel gives out (32768).
PROCESS_COUNT_MAX = 256


def hostname_node_id() -> int:
    return default_node_id(hostname())


@dataclasses.dataclass(frozen=True, slots=True)
class Options:
    """What nsqd was told.  ``checked`` judges how the options go together."""

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
        "address under which others find this node",
        default_text="the hostname",
    )
    broadcast_tcp_port: int = integer(
        LISTEN, 0, "TCP port others are told; 0: the real one", minimum=0, maximum=65535
    )
    broadcast_http_port: int = integer(
        LISTEN, 0, "HTTP port others are told; 0: the real one", minimum=0, maximum=65535
    )
    node_id: int = integer(
        LISTEN,
        hostname_node_id,
        "the node's part of message ids, unique among the nodes",
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
        "nsqds to run side by side: ports 100 apart, folders node-0... in -data-path, ids in a row",
        minimum=1,
        maximum=PROCESS_COUNT_MAX,
        own=True,
    )

    nsqlookupd_tcp_addresses: tuple[str, ...] = strings(
        CLUSTER, "address:port of an nsqlookupd to register with", flag="lookupd-tcp-address"
    )
    lookupd_tls: bool = boolean(
        CLUSTER, False, "speak TLS with nsqlookupds, and nothing else", own=True
    )
    lookupd_tls_root_ca_file: str = string(
        CLUSTER,
        "",
        "path of the authority that signed nsqlookupds' certificates; empty: the system's",
        own=True,
    )
    lookupd_tls_cert: str = string(
        CLUSTER, "", "path of the certificate to show to nsqlookupds", own=True
    )
    lookupd_tls_key: str = string(CLUSTER, "", "path of that certificate's key", own=True)
    max_lookupd_channels: int = integer(
        CLUSTER,
        1000,
        "channels of a new topic that one nsqlookupd may name; the others are not made",
        minimum=1,
        maximum=100_000,
        own=True,
    )
    http_client_connect_timeout_ns: int = duration(
        CLUSTER, "2s", "limit to connect to nsqlookupd and the auth server", minimum="1ns"
    )
    http_client_request_timeout_ns: int = duration(
        CLUSTER, "5s", "limit for a request to nsqlookupd and the auth server", minimum="1ns"
    )
    topology_region: str = string(CLUSTER, "", "region this node stands in")
    topology_zone: str = string(CLUSTER, "", "zone of the region this node stands in")
    enable_experiment: tuple[str, ...] = strings(
        CLUSTER, "an experiment of NSQ's to take part in: topology-aware-consumption"
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
        "messages an ephemeral channel or topic keeps; depth beyond it counts as backend_depth",
        minimum=0,
    )
    mem_queue_bytes: int = integer(
        STORAGE,
        64 << 20,
        "bytes an ephemeral channel or topic keeps; all of them together eight times as many",
        minimum=1,
        own=True,
    )
    max_bytes_per_file: int = integer(
        STORAGE, 104_857_600, "bytes in a log segment before the next begins", minimum=1
    )
    sync_every: int = integer(
        STORAGE,
        2500,
        "messages between syncs of a topic's log; 1: a publish is answered after its sync",
        minimum=1,
    )
    sync_timeout_ns: int = duration(
        STORAGE, "2s", "longest time before what was written is synced", minimum="1ns"
    )

    staging_timeout_ns: int = duration(
        STORAGE,
        "24h",
        "time after which rows that were staged and not published are dropped",
        minimum="1s",
        own=True,
    )
    max_staging_bytes: int = integer(
        STORAGE, 10 << 30, "bytes of staged rows this node keeps", minimum=1, own=True
    )

    max_msg_size: int = integer(
        MESSAGES, 1_048_576, "largest message, in bytes", minimum=1, maximum=MESSAGE_SIZE_MAX
    )
    max_body_size: int = integer(
        MESSAGES,
        5_242_880,
        "largest body of MPUB, in bytes; of IDENTIFY and AUTH if it is below 64 KiB and 8 KiB",
        minimum=1,
        maximum=BODY_SIZE_MAX,
    )
    max_unfinished_body_bytes: int = integer(
        MESSAGES,
        64 << 20,
        "bytes of bodies that are not here whole, of all connections; beyond it the newest wait",
        minimum=1,
        own=True,
    )
    msg_timeout_ns: int = duration(
        MESSAGES, "1m", "time a client has to finish a message before it is requeued", minimum="1ns"
    )
    max_msg_timeout_ns: int = duration(
        MESSAGES,
        "15m",
        "longest time a message may stay in flight, TOUCHes included",
        minimum="1ns",
    )
    max_req_timeout_ns: int = duration(
        MESSAGES, "1h", "longest delay of a requeue; a longer one is shortened to it"
    )
    max_defer_ns: int = duration(
        MESSAGES,
        "365d",
        "longest delay of DPUB and of defer= in HTTP; NSQ's is -max-req-timeout",
        own=True,
    )
    requeue_on_disconnect: bool = boolean(
        MESSAGES,
        True,
        "requeue a lost client's messages at once; false: at their timeout, as NSQ does",
        own=True,
    )

    pull_channel_lapse_ns: int = duration(
        MESSAGES,
        "168h",
        "time without its reader after which a pull channel is deleted; 0: never",
        own=True,
    )
    pull_channel_lapse_bytes: int = integer(
        MESSAGES,
        0,
        "bytes a pull channel without its reader may keep on disk before it is deleted; 0: any",
        minimum=0,
        own=True,
    )

    max_heartbeat_interval_ns: int = duration(
        CLIENTS, "1m", "longest heartbeat interval a client may ask for", minimum="1ms"
    )
    max_rdy_count: int = integer(CLIENTS, 2500, "largest ready count of a client", minimum=1)
    max_output_buffer_size: int = integer(
        CLIENTS, 65_536, "largest output buffer a client may ask for, in bytes", minimum=64
    )
    output_buffer_timeout_ns: int = duration(
        CLIENTS, "250ms", "time after which buffered output is sent, unless a client asks otherwise"
    )
    max_output_buffer_timeout_ns: int = duration(
        CLIENTS, "30s", "longest output buffer timeout a client may ask for"
    )
    min_output_buffer_timeout_ns: int = duration(
        CLIENTS, "25ms", "shortest output buffer timeout a client may ask for"
    )
    client_write_timeout_ns: int = duration(
        CLIENTS,
        "1m",
        "time after which a client that takes nothing of what is sent to it is cut off",
        minimum="100ms",
        own=True,
    )
    max_channel_consumers: int = integer(
        CLIENTS, 0, "clients a channel may have on this node; 0: any number", minimum=0
    )

    queue_scan: str = choice(
        SCAN,
        "deadline",
        "how due messages are found: in order of deadline, or by NSQ's sampling",
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
        SCAN, 20, "channels looked at in a scan of -queue-scan=sample", minimum=1
    )
    queue_scan_worker_pool_max: int = integer(
        SCAN, 4, "scan slots of -queue-scan=sample: a quarter of the channels up to this", minimum=1
    )
    queue_scan_dirty_percent: float = number(
        SCAN,
        0.25,
        "share of channels with due messages above which -queue-scan=sample scans again at once",
        minimum=0.0,
        maximum=1.0,
        own=True,
    )

    tls_cert: str = string(TLS, "", "path of the certificate; turns TLS and HTTPS on")
    tls_key: str = string(TLS, "", "path of the certificate's key")
    tls_root_ca_file: str = string(
        TLS, "", "path of the authority that signs clients' and the auth server's certificates"
    )
    tls_client_auth_policy: str = tls_client_auth_policy(TLS, "clients")
    tls_required: str = tls_required(TLS, "clients")
    tls_min_version: str = choice(
        TLS, "tls1.0", "oldest TLS version to accept", TLS_VERSIONS, aliases={"": "tls1.0"}
    )
    deflate: bool = boolean(TLS, True, "let clients negotiate deflate")
    max_deflate_level: int = integer(
        TLS, 6, "highest deflate level a client may ask for", minimum=1, maximum=9, checked=False
    )
    snappy: bool = boolean(TLS, True, "let clients negotiate snappy")

    auth_http_addresses: tuple[str, ...] = strings(
        AUTH, "address:port or URL of an auth server to ask", flag="auth-http-address"
    )
    auth_http_request_method: str = string(
        AUTH, "get", "method of requests to the auth server: get or post"
    )

    http_auth_token_file: str = string(
        AUTH,
        "",
        "path of a file with lines of a role (publish, read, metrics, admin) and a token for HTTP",
        own=True,
    )
    allowed_hosts: tuple[str, ...] = strings(
        AUTH,
        "further host name to answer HTTP under: name, .domain or *; checked with tokens or if set",
        flag="allowed-host",
        own=True,
    )

    statsd_address: str = string(
        STATS, "", "address:port (UDP) of a statsd to push to; empty: none"
    )
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
        "percentile of the time from publish to finish to track, above 0 and up to 1",
        flag="e2e-processing-latency-percentile",
    )
    e2e_processing_latency_window_time_ns: int = duration(
        STATS, "10m", "time over which those percentiles are taken", minimum="1ms"
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
        # Whoever names certificates does not want them unused.
        raise OptionError("--lookupd-tls-cert and --lookupd-tls-root-ca-file need --lookupd-tls")
