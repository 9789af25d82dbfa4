"""The clients of an nsqd: those connected, and counts of those that are gone."""

from __future__ import annotations

from typing import Any, Protocol


class ConnectedClient(Protocol):
    """A client, as the daemon and its statistics see it."""

    @property
    def command_count(self) -> int: ...
    @property
    def pub_counts(self) -> dict[str, int]: ...
    def stats(self, topic: str) -> dict[str, Any]: ...
    def forget_topics(self) -> None: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...


class Clients:
    """All clients of one nsqd."""

    def __init__(self) -> None:
        self.connected: set[ConnectedClient] = set()
        self.left_command_count = 0  # commands of clients that are gone
        self.stuck_count = 0  # clients disconnected because they did not read

    def forget_topics(self, _draining: bool) -> None:
        """The topics that clients may publish to have changed."""
        for client in list(self.connected):
            client.forget_topics()
