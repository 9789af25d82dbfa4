"""Acknowledged staged rows that cannot be published, and what an admin can do (R19).

A batch with such a staging is held back: requests to publish it get an error with the reason.  An
admin can restore the file and restart nsqd, publish the batch without those rows (``give_up``), or
reset the query (``reset``).
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
    """The lost stagings of one node."""

    def __init__(self, staging: Staging) -> None:
        self._staging = staging
        self.lost: dict[Key, Noted] = {}
        self.unknown_count = 0  # files kept aside whose query is unknown

    def refuse(self, key: Key) -> None:
        if key in self.lost:
            raise StagingError("STAGING_LOST", self.lost[key].lost)

    def error(self, key: Key) -> StagingError:
        """The error for a staging that is missing when it should be published."""
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
        """Forget the losses of a query, or of its batches up to ``batch``."""
        gone = [
            key for key in self.lost if key.query == query and (batch is None or key.batch <= batch)
        ]
        numbers = [self.lost.pop(key).number for key in gone]
        if numbers:
            note = partial(self._staging.notes.forget, numbers, 0, sync=True)
            self._staging.shared.context.disk.submit(note, self._staging.removed)

    # Operations of an admin

    def give_up(self, query: str, batch: int, names: list[tuple[int, str]]) -> Ticket:
        """Publish a batch without these stagings."""
        staging = self._staging
        if staging.is_published(Key(query, batch, 0, "")):
            raise StagingError("BATCH_PUBLISHED", "the batch, or a later one, is published")
        publication = staging.publications.get(query)
        if publication is not None and publication.batch == batch:
            if publication.running:
                raise StagingError("BATCH_OPEN", "it is being published at this moment")
            publication.give_up(set(names))
        log.warning("query=%s batch=%d: an admin gave up %d stagings", query, batch, len(names))
        return staging.ledger.give_up(query, GivenUp(batch, frozenset(names)))

    def reset(self, query: str, published: int | None) -> tuple[int, Ticket]:
        """Forget a query and drop its stagings; returns how many there were."""
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
