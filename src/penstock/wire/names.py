"""Names of topics and channels: 1 to 64 bytes of ``[.a-zA-Z0-9_-]``, then maybe ``#ephemeral``."""

from __future__ import annotations

import re

NAME_SIZE_MAX = 64  # with the suffix
EPHEMERAL = "#ephemeral"

# ``fullmatch``, because ``$`` would accept a trailing newline.
_NAME = re.compile(r"[.a-zA-Z0-9_-]+(#ephemeral)?")
_NAME_BYTES = re.compile(rb"[.a-zA-Z0-9_-]+(#ephemeral)?")


def is_valid_name(name: str | bytes) -> bool:
    """Return whether ``name`` is a valid name of a topic or channel."""
    if not 1 <= len(name) <= NAME_SIZE_MAX:
        return False
    if isinstance(name, str):
        return _NAME.fullmatch(name) is not None
    return _NAME_BYTES.fullmatch(name) is not None


def is_ephemeral(name: str | bytes) -> bool:
    """Return whether a topic or channel of this name is removed with its last client."""
    return name.endswith(EPHEMERAL) if isinstance(name, str) else name.endswith(b"#ephemeral")
