"""The options of nsqadmin: NSQ's flags with NSQ's defaults, and ours."""

from __future__ import annotations

import dataclasses
import ipaddress

from penstock.errors import OptionError
from penstock.settings.daemon import log_format, log_level, log_prefix
from penstock.settings.table import boolean, duration, settings_of, string, strings

LISTEN = "Listening"
CLUSTER = "Cluster, one of the two"
CLIENT = "Requests to nsqlookupd and nsqd"
ACCESS = "Access control"
CHARTS = "Charts"


@dataclasses.dataclass(frozen=True, slots=True)
class AdminOptions:
    """The options of an nsqadmin.  ``checked`` validates their combination."""

    http_address: str = string(
        LISTEN, "0.0.0.0:4171", "address:port for browsers, or the path of a unix socket"
    )
    base_path: str = string(LISTEN, "/", "path prefix of all pages, for a reverse proxy")
    allowed_hosts: tuple[str, ...] = strings(
        LISTEN,
        "accept requests for this host; .example.org: all its subdomains; *: any host",
        flag="allowed-host",
        own=True,
    )
    dev_static_dir: str = string(
        LISTEN, "", "folder of static files to use instead of the built-in ones"
    )

    nsqlookupd_http_addresses: tuple[str, ...] = strings(
        CLUSTER, "HTTP address:port of an nsqlookupd", flag="lookupd-http-address"
    )
    nsqd_http_addresses: tuple[str, ...] = strings(
        CLUSTER, "HTTP address:port of an nsqd", flag="nsqd-http-address"
    )

    http_client_connect_timeout_ns: int = duration(
        CLIENT, "2s", "timeout for connecting to a daemon", minimum="1ms"
    )
    http_client_request_timeout_ns: int = duration(
        CLIENT, "5s", "timeout for a daemon's complete response", minimum="1ms"
    )
    http_client_tls_insecure_skip_verify: bool = boolean(
        CLIENT, False, "skip certificate verification"
    )
    http_client_tls_root_ca_file: str = string(
        CLIENT, "", "CA certificates to verify daemons with (PEM file)"
    )
    http_client_tls_cert: str = string(CLIENT, "", "client certificate for daemons (PEM file)")
    http_client_tls_key: str = string(CLIENT, "", "private key of -http-client-tls-cert (PEM file)")
    nsqd_auth_token_file: str = string(
        CLIENT, "", "file with the token for nsqds that require one", own=True
    )

    acl_http_header: str = string(
        ACCESS, "X-Forwarded-User", "header in which a proxy passes the user's name"
    )
    admin_users: tuple[str, ...] = strings(
        ACCESS, "user who may run actions; if none is named, everybody may", flag="admin-user"
    )
    allow_config_from_cidr: str = string(
        ACCESS, "127.0.0.1/8", "addresses that may use /config; empty: all"
    )
    notification_http_endpoint: str = string(ACCESS, "", "URL to POST every action to, as JSON")

    sample_interval_ns: int = duration(
        CHARTS,
        "5s",
        "time between two samples of the cluster",
        minimum="1s",
        maximum="1m",
        own=True,
    )
    graphite_url: str = string(CHARTS, "", "URL of Graphite, for /api/graphite and /render")
    proxy_graphite: bool = boolean(CHARTS, False, "proxy /render to Graphite")
    statsd_counter_format: str = string(
        CHARTS, "stats.counters.%s.count", "name of a counter in Graphite; %s is its key"
    )
    statsd_gauge_format: str = string(
        CHARTS, "stats.gauges.%s", "name of a gauge in Graphite; %s is its key"
    )
    statsd_interval_ns: int = duration(
        CHARTS, "1m", "interval at which the nsqds push to statsd", minimum="1s"
    )
    statsd_prefix: str = string(CHARTS, "nsq.%s", "prefix of the nsqds' keys; %s is the node")

    log_level: str = log_level()
    log_prefix: str = log_prefix("nsqadmin")
    log_format: str = log_format()


SETTINGS = settings_of(AdminOptions)


def checked(options: AdminOptions) -> AdminOptions:
    """Return the options with a clean base path, or raise OptionError."""
    if options.nsqlookupd_http_addresses and options.nsqd_http_addresses:
        raise OptionError("use --nsqd-http-address or --lookupd-http-address not both")
    if not (options.nsqlookupd_http_addresses or options.nsqd_http_addresses):
        raise OptionError("--nsqd-http-address or --lookupd-http-address required")
    if bool(options.http_client_tls_cert) != bool(options.http_client_tls_key):
        raise OptionError("--http-client-tls-key must be specified with --http-client-tls-cert")
    if options.allow_config_from_cidr:
        config_network(options)
    for name in ("notification_http_endpoint", "graphite_url"):
        url = getattr(options, name)
        if url and not url.startswith(("http://", "https://")):
            flag = name.replace("_", "-")
            raise OptionError(f'--{flag} "{url}" must begin with http:// or https://')
    if options.proxy_graphite and not options.graphite_url:
        raise OptionError("--proxy-graphite needs --graphite-url")
    segments = [segment for segment in options.base_path.split("/") if segment not in ("", ".")]
    if ".." in segments or not options.base_path.isprintable() or "?" in options.base_path:
        raise OptionError(f'--base-path "{options.base_path}" must be a plain path')
    return dataclasses.replace(options, base_path="/" + "/".join(segments))


def config_network(options: AdminOptions) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    """The addresses that may use /config.  Raises OptionError."""
    try:
        return ipaddress.ip_network(options.allow_config_from_cidr, strict=False)
    except ValueError:
        raise OptionError(
            f'--allow-config-from-cidr "{options.allow_config_from_cidr}" must be like 10.0.0.0/8'
        ) from None
