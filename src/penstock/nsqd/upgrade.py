"""TLS and compression between a connection's frames and its socket.

    socket  <->  Tls  <->  Snappy or Deflate  <->  frames

A plain connection has no Upgrade and no extra cost.

IDENTIFY's reply is sent in clear; then an OK is sent when each layer is ready: with TLS and deflate
there are two.  The data of one call is compressed and encrypted as one piece.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from ssl import SSLContext

from penstock.wire import frames
from penstock.wire.compression import Deflate, Packing, Part, Snappy
from penstock.wire.identify import Settings
from penstock.wire.tls import Tls

# As in nsqd.
HANDSHAKE_TIMEOUT_S = 5.0


class Upgrade:
    """The layers of one connection."""

    def __init__(self, write: Callable[[bytes], None], context: SSLContext | None) -> None:
        """``write`` sends bytes as they are."""
        self.tls: Tls | None = None
        self.packing: Packing | None = None
        self.handshaking = False
        self._write_raw: Callable[[bytes], None] | None = write
        self._context = context
        self._wanted: Settings | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def pending(self) -> bool:
        """Whether received bytes are still to be decompressed."""
        return self.packing is not None and self.packing.pending

    @property
    def pending_size(self) -> int:
        """Bytes received and not decompressed yet."""
        return self.packing.pending_size if self.packing is not None else 0

    @property
    def ended(self) -> bool:
        """Whether the peer has ended its side of a layer."""
        ended = self.tls is not None and self.tls.ended
        return ended or (self.packing is not None and self.packing.ended)

    def begin(
        self, wanted: Settings, loop: asyncio.AbstractEventLoop, late: Callable[[], None]
    ) -> None:
        """Set up what was negotiated; TLS is ready when ``handshaking`` is False.

        ``late`` is called if the client does not complete the handshake in time.
        """
        self._wanted = wanted
        if wanted.tls_v1:
            assert self._context is not None and self.tls is None
            self.tls = Tls(self._context)
            self.handshaking = True
            self._timer = loop.call_later(HANDSHAKE_TIMEOUT_S, late)
        else:
            self._pack(wanted)

    def receive(self, data: bytes) -> bytes:
        """Return the decoded bytes of ``data``; raises StreamError if it is invalid."""
        tls = self.tls
        if tls is not None:
            if not self.handshaking:
                data = tls.receive(data)
            elif not tls.handshake(data):
                self.flush()
                return b""
            else:
                self._agree()
                data = tls.receive(b"")
            self.flush()
        return data if self.packing is None else self.packing.decompress(data)

    def wrap(self, parts: Sequence[Part]) -> bytes:
        """Return the bytes to send for ``parts``."""
        if self.packing is not None:
            parts = (self.packing.compress(parts),)
        return bytes(parts[0]) if self.tls is None else self.tls.send(parts)

    def flush(self) -> None:
        """Send pending TLS records."""
        if self.tls is not None and (output := self.tls.take_output()):
            self._write(output)

    def close(self) -> None:
        """Send TLS's close_notify."""
        if self.tls is not None and not self.handshaking:
            self._write(self.tls.close())

    def lose(self) -> None:
        """The connection is lost: received bytes are still decoded, nothing is sent."""
        self._write_raw = None

    def cancel(self) -> None:
        """Cancel the handshake timeout."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _agree(self) -> None:
        assert self._wanted is not None
        self.cancel()
        self.handshaking = False
        self._write(self.wrap((frames.OK,)))
        self._pack(self._wanted)

    def _pack(self, wanted: Settings) -> None:
        if wanted.snappy:
            self.packing = Snappy()
        elif wanted.deflate:
            self.packing = Deflate(wanted.deflate_level)
        else:
            return
        self._write(self.wrap((frames.OK,)))

    def _write(self, data: bytes) -> None:
        if self._write_raw is not None:
            self._write_raw(data)
