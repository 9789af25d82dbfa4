"""Message ids, and the node id within them.

id = node id << 54 | index, as 16 lower-case hex digits
     10 bits         54 bits
"""

from __future__ import annotations

INDEX_BITS = 54
INDEX_MAX = (1 << INDEX_BITS) - 1
NODE_ID_COUNT = 1024  # 10 bits, as in NSQ's own ids
ID_SIZE = 16


def message_id(node_id: int, index: int) -> bytes:
    """Return the id of the message at ``index`` in wire format."""
    assert 0 <= node_id < NODE_ID_COUNT and 0 <= index <= INDEX_MAX, (node_id, index)
    return b"%016x" % (node_id << INDEX_BITS | index)


def split_id(message_id: bytes) -> tuple[int, int] | None:
    """Return (node id, index), or None if it is not a valid id.

    Ids are compared byte by byte, so upper case, signs and spaces, all of which ``int`` accepts,
    are invalid.
    """
    if len(message_id) != ID_SIZE or message_id.strip(b"0123456789abcdef"):
        return None
    value = int(message_id, 16)
    return value >> INDEX_BITS, value & INDEX_MAX


def default_node_id(hostname: str) -> int:
    """Return NSQ's default: the CRC-32 (IEEE) of the 16 raw bytes of the hostname's MD5."""
    import hashlib  # used once, and not for `-version`
    import zlib

    digest = hashlib.md5(hostname.encode(), usedforsecurity=False).digest()
    return zlib.crc32(digest) % NODE_ID_COUNT
