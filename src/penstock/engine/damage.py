"""Damaged or missing data on disk: reported once, shown until an operator clears it.

Rule 1: every report is one ERROR line in the log, a count in /metrics and a record in
        penstock/damage.json, which survives restarts.
Rule 2: damage does not fail /ping.  What is lost stays lost; a node that works is healthy.
        engine/health.py has what fails at the moment.
Rule 3: the same damage, found again, is not reported again, even after it was cleared.
Rule 4: a report never fails and never waits.  A record that cannot be written is written with the
        next one, and at exit.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from penstock.core.ticket import Ticket, settled
from penstock.engine.catalog.saved_file import SavedFile
from penstock.engine.context import Context
from penstock.engine.health import Health
from penstock.errors import CorruptError
from penstock.storage.damage import (
    RECORD_MAX,
    TEXT_SIZE_MAX,
    DamageKind,
    DamageRecord,
    encode_damage,
    load_damage,
)

log = logging.getLogger(__name__)


class DamageLog:
    """The damage of one data path."""

    def __init__(self, context: Context, health: Health) -> None:
        self._context = context
        self._file = SavedFile(context, health, "damage.json", self._encode)
        self._records: dict[tuple[str, str, str, str], DamageRecord] = {}
        # Damage found by this process, by kind.
        self.counts: Counter[DamageKind] = Counter()
        self.message_counts: Counter[DamageKind] = Counter()

    def open(self) -> None:
        """Load the records of earlier runs.  Blocking."""
        files, path = self._context.files, self._context.data.damage
        try:
            records = load_damage(files, path)
        except CorruptError as error:
            files.rename(path, f"{path}.bad")
            self.report(DamageKind.NODE, f"{error}; kept as damage.json.bad", path=path)
            return
        self._records = {record.key: record for record in records}

    def report(
        self,
        kind: DamageKind | str,
        text: str,
        *,
        topic: str = "",
        path: str = "",
        messages: int | None = None,
    ) -> None:
        """Report damaged or missing data; ``messages`` is how many were lost, if known.

        ``text`` states what happened and where the bytes are now.  The same text for the same file
        means the same damage.
        """
        kind = DamageKind(kind)
        record = DamageRecord(
            self._context.clock.wall_ns(), kind, topic, path, messages, text[:TEXT_SIZE_MAX]
        )
        if record.key in self._records:
            return
        where = f"topic={topic}: " if topic else ""
        log.error("%sdamaged (%s): %s", where, kind, text)
        self.counts[kind] += 1
        self.message_counts[kind] += messages or 0
        self._records[record.key] = record
        while len(self._records) > RECORD_MAX:
            del self._records[next(iter(self._records))]
        self.save()

    def clear(self) -> Ticket:
        """Clear all records; the ticket is settled when that is durable."""
        count = len(self.records)
        self._records = {key: r._replace(cleared=True) for key, r in self._records.items()}
        log.info("damage: %d records cleared", count)
        return self.save() if count else settled()

    def save(self) -> Ticket:
        """Write the records; the ticket is settled when they are on disk."""
        return self._file.save()

    # What /stats and /metrics show

    @property
    def records(self) -> list[DamageRecord]:
        """Records that are not cleared, oldest first."""
        return [record for record in self._records.values() if not record.cleared]

    @property
    def summary(self) -> dict[str, Any] | None:
        """For /stats; None without records."""
        records = self.records
        if not records:
            return None
        kinds = Counter(str(record.kind) for record in records)
        return {
            "records": len(records),
            "messages": sum(record.messages or 0 for record in records),
            "kinds": dict(sorted(kinds.items())),
            "last": as_json(records[-1]),
        }

    def _encode(self) -> Callable[[], None]:
        data = encode_damage(list(self._records.values()))
        return partial(self._context.files.write_new, self._context.data.damage, data)


def as_json(record: DamageRecord) -> dict[str, Any]:
    return {
        "time": record.time_ns // 1_000_000_000,
        "kind": str(record.kind),
        "topic": record.topic,
        "path": record.path,
        "messages": record.messages,
        "text": record.text,
    }
