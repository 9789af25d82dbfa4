"""The other side of a TCP connection: its address, and what it has not received."""

from __future__ import annotations

import array
import fcntl
import socket
import termios

from penstock.wire.address import peer_address


def set_up_peer(sock: socket.socket) -> tuple[str, str]:
    """Send small replies at once; return the host and the address of the other side.

    A unix socket has neither.
    """
    sock.setblocking(False)
    if sock.family in (socket.AF_INET, socket.AF_INET6):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    peer = sock.getpeername()
    return str(peer[0]) if isinstance(peer, tuple) else "", peer_address(peer)


def unsent_size(fd: int) -> int:
    """Bytes written to a socket and not acknowledged by the other side; 0 if unknown."""
    size = array.array("i", [0])
    try:
        fcntl.ioctl(fd, termios.TIOCOUTQ, size)
    except OSError:
        return 0
    return size[0]
