"""Staged rows that were acknowledged and cannot be published, and what an admin may do (R19).

A batch with such a staging is held back: whoever wants it published is told what became of the
rows.  An admin restores the file and restarts nsqd, has the batch published without those rows
(``give_up``), or has the query begin anew (``reset``).
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from penstock.core.ticket import Ticket
from penstock.errors import StagingError
from penstock.storage.ledger import GivenUp
from penstock.storage.staging import Key
from penstock.storage.staging_notes import Noted

if TYPE_CHECKING:
    from penstock.engine.staging.area import Staging

log = logging.getLogger(__name__)


class StagingLosses:
    """What was lost of the stagings of one node."""

    def __init__(self, staging: Staging) -> None:
        self._staging = staging
        self.lost: dict[Key, Noted] = {}
        self.unknown_count = 0  # files kept aside of which nobody knows whose rows they hold

    def refuse(self, key: Key) -> None:
        if key in self.lost:
            raise StagingError("STAGING_LOST", self.lost[key].lost)

    def error(self, key: Key) -> StagingError:
        """Why a staging that should be published is not here."""
        what = f"partition {key.partition}, attempt {key.attempt}"
        staging = self._staging
        if key in self.lost:
            return StagingError("STAGING_LOST", self.lost[key].lost)
        winners = staging.ledger.winners_here(key.query, key.batch, staging.shared.identity.uuid)
        publication = staging.publications.get(key.query)
        begun = publication is not None and publication.batch == key.batch
        if begun or (key.partition, key.attempt) in winners:
            return StagingError("STAGING_LOST", f"{what} was decided for and is missing")
        if self.unknown_count:
            text = f"{what} is not here, and {self.unknown_count} damaged files were kept aside"
            return StagingError("STAGING_LOST", f"{text}; see /damage")
        return StagingError("STAGING_NOT_FOUND", what)

    def forget(self, query: str, batch: int | None = None) -> None:
        """Nobody asks any more for what was lost of a query, or of its batches up to one."""
        gone = [
            key for key in self.lost if key.query == query and (batch is None or key.batch <= batch)
        ]
        numbers = [self.lost.pop(key).number for key in gone]
        if numbers:
            note = partial(self._staging.notes.forget, numbers, 0, sync=True)
            self._staging.shared.context.disk.submit(note, self._staging.heard_removal)

    # What an admin does

    def give_up(self, query: str, batch: int, names: list[tuple[int, str]]) -> Ticket:
        """Have a batch published without these stagings."""
        staging = self._staging
        if staging.is_published(Key(query, batch, 0, "")):
            raise StagingError("BATCH_PUBLISHED", "the batch, or a later one, is published")
        publication = staging.publications.get(query)
        if publication is not None and publication.batch == batch:
            if publication.running:
                raise StagingError("BATCH_OPEN", "it is being published at this moment")
            publication.give_up(set(names))
        log.warning("query=%s batch=%d: an admin gave %d stagings up", query, batch, len(names))
        return staging.ledger.give_up(query, GivenUp(batch, frozenset(names)))

    def reset(self, query: str, published: int | None) -> tuple[int, Ticket]:
        """Forget all of a query, its stagings included; returns how many these were."""
        staging = self._staging
        own = [staging.publications.get(query), *staging.published]
        begun = [each for each in own if each is not None and each.query == query]
        if any(publication.running for publication in begun):
            raise StagingError("BATCH_OPEN", "a batch is being published at this moment")
        for publication in begun:
            publication.drop()
        count = staging.discard(query)
        self.forget(query)
        log.warning("query=%s: an admin reset it, %d stagings discarded", query, count)
        return count, staging.ledger.reset(query, published)
