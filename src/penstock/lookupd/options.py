"""The options of nsqlookupd: NSQ's flags with NSQ's defaults, TLS, and the log format."""

from __future__ import annotations

import dataclasses

from penstock.settings.daemon import (
    TLS_VERSIONS,
    hostname,
    log_format,
    log_level,
    log_prefix,
    tls_client_auth_policy,
    tls_required,
)
from penstock.settings.table import choice, duration, integer, settings_of, string, strings

LISTEN = "Listening and identity"
REGISTRY = "Producers"
TLS = "TLS"


@dataclasses.dataclass(frozen=True, slots=True)
class LookupdOptions:
    """All options of nsqlookupd."""

    tcp_address: str = string(
        LISTEN, "0.0.0.0:4160", "address:port for nsqds, or the path of a unix socket"
    )
    http_address: str = string(
        LISTEN, "0.0.0.0:4161", "address:port for HTTP, or the path of a unix socket"
    )
    https_address: str = string(
        LISTEN, "0.0.0.0:4162", "address:port for HTTPS; used with a certificate", own=True
    )
    broadcast_address: str = string(
        LISTEN,
        hostname,
        "address that this nsqlookupd announces to nsqds, for its HTTP API",
        default_text="the hostname",
    )
    allowed_hosts: tuple[str, ...] = strings(
        LISTEN,
        "accept HTTP for this host: name, .domain or *; not checked if unset",
        flag="allowed-host",
        own=True,
    )

    inactive_producer_timeout_ns: int = duration(
        REGISTRY, "5m", "hide an nsqd that has sent no PING for this long", minimum="1ns"
    )
    tombstone_lifetime_ns: int = duration(
        REGISTRY, "45s", "time for which a tombstone hides an nsqd from lookups of a topic"
    )
    forget_after_ns: int = duration(
        REGISTRY,
        "24h",
        "forget a topic or channel that no nsqd has had for this long; 0: never",
        own=True,
    )
    max_registrations: int = integer(
        REGISTRY, 100_000, "most topics and channels of one nsqd", minimum=1, own=True
    )
    max_nodes_per_address: int = integer(
        REGISTRY, 256, "most nsqds from one IP address", minimum=1, own=True
    )

    tls_cert: str = string(
        TLS, "", "certificate (PEM file); enables TLS for nsqds, and HTTPS", own=True
    )
    tls_key: str = string(TLS, "", "private key of the certificate (PEM file)", own=True)
    tls_root_ca_file: str = string(
        TLS, "", "CA certificates to verify nsqds with (PEM file)", own=True
    )
    tls_client_auth_policy: str = tls_client_auth_policy(TLS, "peers", own=True)
    tls_required: str = tls_required(TLS, "peers", own=True)
    tls_min_version: str = choice(
        TLS, "tls1.2", "oldest TLS version to accept", TLS_VERSIONS, own=True
    )

    log_level: str = log_level()
    log_prefix: str = log_prefix("nsqlookupd")
    log_format: str = log_format()


SETTINGS = settings_of(LookupdOptions)
