"""What /stats shows of a client's connection."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.scanner import Scanner
from penstock.core.window import Consumer
from penstock.nsqd.upgrade import Upgrade
from penstock.wire import identify
from penstock.wire.tls import Tls

if TYPE_CHECKING:
    from penstock.nsqd.auth import Permit


class Facts:
    """The read-only side of a connection; ``engine.views.ConnectionView`` in full."""

    settings: identify.Settings
    consumer: Consumer | None
    _scanner: Scanner
    _upgrade: Upgrade | None
    _permit: Permit | None

    @property
    def client_id(self) -> str:
        return self.settings.client_id

    @property
    def hostname(self) -> str:
        return self.settings.hostname

    @property
    def user_agent(self) -> str:
        return self.settings.user_agent

    @property
    def topology_zone(self) -> str:
        return self.settings.topology_zone

    @property
    def topology_region(self) -> str:
        return self.settings.topology_region

    @property
    def sample_rate(self) -> int:
        return self.settings.sample_rate

    @property
    def state(self) -> int:
        return self._scanner.state

    @property
    def ready_count(self) -> int:
        return self.consumer.ready_count if self.consumer is not None else 0

    @property
    def in_flight_count(self) -> int:
        return self.consumer.in_flight_count if self.consumer is not None else 0

    @property
    def message_count(self) -> int:
        return self.consumer.message_count if self.consumer is not None else 0

    @property
    def finish_count(self) -> int:
        return self.consumer.finish_count if self.consumer is not None else 0

    @property
    def requeue_count(self) -> int:
        return self.consumer.requeue_count if self.consumer is not None else 0

    @property
    def pub_counts(self) -> dict[str, int]:
        return self._scanner.pub_counts

    @property
    def command_count(self) -> int:
        return self._scanner.command_count

    # ---- TLS and compression

    @property
    def deflate(self) -> bool:
        return self._packing == "deflate"

    @property
    def snappy(self) -> bool:
        return self._packing == "snappy"

    @property
    def _packing(self) -> str:
        packing = self._upgrade.packing if self._upgrade is not None else None
        return packing.name if packing is not None else ""

    @property
    def tls(self) -> Tls | None:
        """None without TLS, and while it is being agreed upon."""
        upgrade = self._upgrade
        if upgrade is None or upgrade.tls is None or upgrade.handshaking:
            return None
        return upgrade.tls

    # ---- AUTH

    @property
    def authed(self) -> bool:
        return self._permit is not None and self._permit.authed

    @property
    def auth_identity(self) -> str:
        return self._permit.identity if self._permit is not None else ""

    @property
    def auth_identity_url(self) -> str:
        return self._permit.identity_url if self._permit is not None else ""
