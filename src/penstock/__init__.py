"""Penstock: an NSQ-compatible message broker, and its client.

    from penstock import Consumer, Producer

The client's modules are loaded when one of their names is first used, so that programs that need
only the broker, or its version, start faster.
"""

from __future__ import annotations

from penstock.version import VERSION as __version__

# Type checkers recognize the name.  Importing typing would double the time of `nsqd -version`.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from penstock.client import Config, Consumer, Message, Producer

__all__ = ["Config", "Consumer", "Message", "Producer", "__version__"]
_CLIENT = frozenset(("Config", "Consumer", "Message", "Producer"))


def __getattr__(name: str) -> object:
    if name not in _CLIENT:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    from importlib import import_module

    found: object = getattr(import_module("penstock.client"), name)
    return found
