"""The other side of a TCP connection: its address, and what it has not received."""

from __future__ import annotations

import array
import asyncio
import fcntl
import socket
import termios

from penstock.wire.address import peer_address


def peer_of(transport: asyncio.Transport) -> tuple[str, str]:
    """(host, address) of the other side; a unix socket has neither."""
    peer = transport.get_extra_info("peername")
    return str(peer[0]) if isinstance(peer, tuple) else "", peer_address(peer)


def set_no_delay(transport: asyncio.Transport) -> None:
    """Send small replies at once; a unix socket has no such option."""
    sock = transport.get_extra_info("socket")
    if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def unsent_size(fd: int) -> int:
    """Bytes written to a socket and not acknowledged by the other side; 0 if unknown."""
    size = array.array("i", [0])
    try:
        fcntl.ioctl(fd, termios.TIOCOUTQ, size)
    except OSError:
        return 0
    return size[0]
