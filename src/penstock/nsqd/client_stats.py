"""What /stats shows for a client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.nsqd.client import Client
    from penstock.wire.tls import Tls


def client_stats(client: Client, topic: str) -> dict[str, Any]:
    """The client, with fields in nsqd's order; ``topic`` is the request's filter, or ""."""
    settings, consumer = client.commands.settings, client.consumer
    packing = client.upgrade.packing if client.upgrade is not None else None
    packed = packing.name if packing is not None else ""
    stats: dict[str, Any] = {
        "client_id": settings.client_id,
        "hostname": settings.hostname,
        "version": "V2",
        "remote_address": client.remote_address,
        "state": client.scanner.state,
        "ready_count": consumer.ready_count if consumer is not None else 0,
        "in_flight_count": consumer.in_flight_count if consumer is not None else 0,
        "message_count": consumer.message_count if consumer is not None else 0,
        "finish_count": consumer.finish_count if consumer is not None else 0,
        "requeue_count": consumer.requeue_count if consumer is not None else 0,
        "connect_ts": client.connect_time,
        "sample_rate": settings.sample_rate,
        "deflate": packed == "deflate",
        "snappy": packed == "snappy",
        "user_agent": settings.user_agent,
    }
    permit = client.commands.permit
    if permit is not None and permit.authed:
        stats["authed"] = True
        named = {"auth_identity": permit.identity, "auth_identity_url": permit.identity_url}
        stats |= {name: value for name, value in named.items() if value}
    stats["topology_zone"] = settings.topology_zone
    stats["topology_region"] = settings.topology_region
    if pub_counts := _pub_counts(client.pub_counts, topic):
        stats["pub_counts"] = pub_counts
    tls = _tls(client)
    stats |= {
        "tls": tls is not None,
        "tls_cipher_suite": tls.cipher_suite if tls is not None else "",
        "tls_version": tls.version if tls is not None else "",
        "tls_negotiated_protocol": tls.protocol if tls is not None else "",
        # Go calls every protocol that a handshake negotiated mutual.
        "tls_negotiated_protocol_is_mutual": tls is not None,
    }
    return stats


def _tls(client: Client) -> Tls | None:
    """None without TLS, and during the handshake."""
    upgrade = client.upgrade
    return None if upgrade is None or upgrade.handshaking else upgrade.tls


def _pub_counts(pub_counts: dict[str, int], topic_name: str) -> list[dict[str, Any]]:
    """At most one entry, as in nsqd: of the filtered topic, else of any."""
    for topic, count in pub_counts.items():
        if not topic_name or topic == topic_name:
            return [{"topic": topic, "count": count}]
    return []
