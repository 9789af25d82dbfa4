"""nsqd's side of nsqlookupd, loaded with the first address.

A standalone nsqd never has one, and every module loaded makes a start slower.  Addresses can be
added at any time, by PUT /config or SIGHUP.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from ssl import SSLContext
from typing import TYPE_CHECKING

from penstock.engine.components import Components
from penstock.engine.options import Options

if TYPE_CHECKING:
    from penstock.nsqd.lookupds import Lookupds
    from penstock.wire.lookup import Identity

# How often the options are checked for a first address.
FOLLOW_INTERVAL_S = 0.2


class Registration:
    """Loads and starts ``Lookupds`` once there is an address."""

    def __init__(
        self,
        components: Components,
        options: Callable[[], Options],
        identity: Callable[[], Identity],
        tls: Callable[[], SSLContext | None],
    ) -> None:
        self._components = components
        self._options = options
        self._identity = identity
        self._tls = tls
        self._lookupds: Lookupds | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def unmade_channel_count(self) -> int:
        return self._lookupds.unmade_channel_count if self._lookupds is not None else 0

    def attach(self) -> None:
        """Track changes from now on; nothing is sent before ``start``."""
        if self._options().nsqlookupd_tcp_addresses:
            from penstock.nsqd.lookupds import Lookupds

            self._lookupds = Lookupds(self._components, self._options, self._identity, self._tls)
            self._lookupds.attach()

    def start(self) -> None:
        """Connect; called when the ports to announce are known."""
        if self._lookupds is None:
            self.attach()
        if self._lookupds is not None:
            self._lookupds.start()
        else:
            self._timer = asyncio.get_running_loop().call_later(FOLLOW_INTERVAL_S, self.start)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._lookupds is not None:
            self._lookupds.close()
