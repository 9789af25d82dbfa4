"""The result of an import; ``as_json`` is for programs."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from penstock.storage.diskqueue import QueueDamage


@dataclass
class QueueReport:
    """One queue of the source.  ``depth`` is from its meta file, None without a valid one."""

    name: str
    depth: int | None = None
    record_count: int = 0
    salvaged_count: int = 0  # of these, beyond what the meta file covers


@dataclass
class ChannelReport:
    """A channel; ``retried_count`` of its undelivered messages were delivered before."""

    name: str
    paused: bool = False
    undelivered_count: int = 0
    retried_count: int = 0
    finished_count: int = 0


@dataclass
class TopicReport:
    """A topic; ``held_count`` messages were in its own queue, for all channels."""

    name: str
    paused: bool = False
    message_count: int = 0
    body_size: int = 0
    held_count: int = 0
    channels: list[ChannelReport] = field(default_factory=list)
    queues: list[QueueReport] = field(default_factory=list)

    @property
    def record_count(self) -> int:
        return sum(queue.record_count for queue in self.queues)

    @property
    def salvaged_count(self) -> int:
        return sum(queue.salvaged_count for queue in self.queues)


@dataclass
class ImportReport:
    source: str
    target: str
    dry_run: bool = False
    seconds: float = 0.0
    topics: list[TopicReport] = field(default_factory=list)
    damage: list[QueueDamage] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def channel_count(self) -> int:
        return sum(len(topic.channels) for topic in self.topics)

    @property
    def message_count(self) -> int:
        return sum(topic.message_count for topic in self.topics)

    @property
    def record_count(self) -> int:
        return sum(topic.record_count for topic in self.topics)

    @property
    def salvaged_count(self) -> int:
        return sum(topic.salvaged_count for topic in self.topics)

    @property
    def damaged_size(self) -> int:
        return sum(damage.size for damage in self.damage)

    def as_json(self) -> dict[str, Any]:
        """The report as plain values, with the sums first."""
        whole = dataclasses.asdict(self)
        topics, damage, notes = whole.pop("topics"), whole.pop("damage"), whole.pop("notes")
        return {
            **whole,
            "topic_count": len(self.topics),
            "channel_count": self.channel_count,
            "message_count": self.message_count,
            "record_count": self.record_count,
            "salvaged_count": self.salvaged_count,
            "damaged_size": self.damaged_size,
            "topics": topics,
            "damage": damage,
            "notes": notes,
        }
