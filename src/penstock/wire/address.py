"""Addresses, as in options and in the answers of daemons.

host:port, [::1]:port      join_address, split_address
/run/nsqd.sock             a unix socket: split_address returns it without a port
"""

from __future__ import annotations

from penstock.errors import OptionError


def join_address(host: str, port: int) -> str:
    """``host:port``, IPv6 in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_address(address: str) -> tuple[str, int | None]:
    """(host, port) of ``host:port``; (path, None) of a unix socket's path."""
    if "/" in address:
        return address, None
    host, _, port = address.rpartition(":")
    if not port.isdecimal() or int(port) > 65535:
        raise OptionError(f'"{address}" must be host:port or a path')
    return host.strip("[]"), int(port)


def peer_address(peername: object, unix: str = "@") -> str:
    """The address of a socket's other end; a unix socket has none and is called ``unix``."""
    return join_address(*peername[:2]) if isinstance(peername, tuple) else unix
