"""Names of topics and channels, as the wire defines them."""

from __future__ import annotations

from penstock.wire.names import EPHEMERAL, NAME_SIZE_MAX, is_ephemeral, is_valid_name

__all__ = ["EPHEMERAL", "NAME_SIZE_MAX", "is_ephemeral", "is_valid_name"]
