"""Recovers the stagings of an earlier process, and compares them with the notes (R19).

    noted as sealed   file good                  recovered
                      header or seal damaged     recovered with the help of the notes, reported
                      cut, damaged or missing    lost: reported, kept aside, its batch is held back
    not noted         no seal                    recovered; a torn end is truncated
                      no good header             torn if short or zeros, else reported, kept aside

Rule 1: versions are checked before any file of the data path is changed: with a later one nsqd does
        not start.
Rule 2: a read error is not damage: nsqd does not start, and a start may be retried.
Rule 3: acknowledged rows that cannot be published are reported once and remembered: requests to
        publish them get an error with the reason.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.engine.staging.area import Staging
from penstock.engine.staging.staging import Staged
from penstock.errors import StorageError
from penstock.storage.damage import DamageKind
from penstock.storage.ledger import Winner
from penstock.storage.staging import FoundStaging, Key, Seal, StagingStore
from penstock.storage.staging_notes import Noted

log = logging.getLogger(__name__)


def check_versions(staging: Staging) -> None:
    """Check the headers of staging files.  Blocking (Rule 1)."""
    store = staging.store
    with _refusing(store):
        for number in store.numbers():
            store.head(number)


def open_stagings(staging: Staging) -> None:
    """Read notes, ledger and staging files.  Blocking."""
    with _refusing(staging.store):
        StagingOpening(staging).run()


@contextmanager
def _refusing(store: StagingStore) -> Iterator[None]:
    """Turn a read error into one that stops the start (Rule 2)."""
    try:
        yield
    except OSError as error:
        path = error.filename or store.folder
        raise StorageError(
            f"staged rows cannot be read: {path}: {error.strerror or error}; nothing was removed"
        ) from error


class StagingOpening:
    """One start."""

    def __init__(self, staging: Staging) -> None:
        self._staging = staging
        self._node_uuid = staging.shared.identity.uuid
        self._clock = staging.shared.context.clock
        self._store = staging.store
        self._notes = staging.notes
        self._now_ns = self._clock.wall_ns()

    def run(self) -> None:
        self._notes.open()
        if self._notes.damaged:
            self._report(f"{self._notes.path} is damaged; it is rewritten", messages=0)
        numbers = self._store.numbers()
        self._staging.ledger.open()
        for number in numbers:
            self._take_up(number, self._notes.sealed.get(number))
        aside = [number for number in self._store.aside() if number not in self._notes.sealed]
        self._staging.losses.unknown_count = len(aside)
        self._report_missing(set(numbers))
        self._report_decided()

    # Files

    def _take_up(self, number: int, noted: Noted | None) -> None:
        staging, store = self._staging, self._store
        staging.number = max(staging.number, number)
        if noted is None:
            found = store.walk(number)
        else:
            found = store.walk(number, noted.key, noted.seal, noted.size)
        key = found.key if found is not None else None
        if key is not None and staging.is_published(key):
            self._notes.forget([number], self._now_ns, sync=False)
            store.remove([number])
        elif noted is not None:
            self._take_up_sealed(number, noted, found)
        elif found is None:
            self._judge_headless(number)
        else:
            self._take_up_found(found)

    def _take_up_sealed(self, number: int, noted: Noted, found: FoundStaging | None) -> None:
        if found is None or found.seal is None:
            self._lose(noted, "is damaged or cut short", is_there=True)
            return
        if found.damaged:
            self._store.keep_head(found)
            self._report(
                f"{self._store.path(number)}: its {found.damaged} is damaged; no row is lost",
                messages=0,
            )
        if noted.lost:
            restored = Noted(number, noted.key, noted.seal, noted.size)
            self._notes.seal(restored, self._now_ns)
            log.info("%s: restored", self._store.path(number))
        self._add(found)

    def _take_up_found(self, found: FoundStaging) -> None:
        number = found.number
        if found.seal is not None:
            # Sealed by a version without notes, or a power cut lost the note.
            self._notes.seal(Noted(number, found.key, found.seal, found.good_size), self._now_ns)
        elif (winner := self._decided(found.key)) is not None:
            # It is a winner, so its seal was synced.
            noted = Noted(number, found.key, Seal(len(found.parts), winner.count), found.size)
            self._notes.seal(noted, self._now_ns)
            self._lose(noted, "has lost its seal", is_there=True)
            return
        elif found.good_size < found.size:
            seal = self._store.seal_at_end(number)
            if seal is not None and any(self._bytes_at(number, found.good_size)):
                noted = Noted(number, found.key, seal, found.size)
                self._notes.seal(noted, self._now_ns)
                self._lose(noted, "is damaged", is_there=True)
                return
            log.info("%s: torn, cut at %d", self._store.path(number), found.good_size)
            self._store.cut(number, found.good_size)
        self._add(found)

    def _decided(self, key: Key) -> Winner | None:
        """This node's staging as a winner of an unpublished batch, or None."""
        state = self._staging.ledger.queries.get(key.query)
        decision = state.decision if state is not None else None
        if decision is None or decision.batch != key.batch:
            return None
        mine = (self._node_uuid, key.partition, key.attempt)
        for winner in decision.winners:
            if (winner.node, winner.partition, winner.attempt) == mine:
                return winner
        return None

    def _bytes_at(self, number: int, offset: int) -> bytes:
        return self._store.files.pread(self._store.path(number), offset, 16, True) or b""

    def _judge_headless(self, number: int) -> None:
        path = self._store.path(number)
        if self._store.is_torn(number):
            log.info("%s: torn, removed", path)
            self._store.remove([number])
            return
        seal = self._store.seal_at_end(number)
        name = self._store.put_aside(number)
        self._report(
            f"{path}: its header is damaged, so the query of its rows is unknown; kept as {name}",
            path=path,
            messages=seal.count if seal is not None else None,
        )

    def _add(self, found: FoundStaging) -> None:
        self._staging.add(Staged.found(found, self._clock.monotonic_ns()))

    # Missing files

    def _report_missing(self, numbers: set[int]) -> None:
        staging, notes = self._staging, self._notes
        for number, noted in list(notes.sealed.items()):
            staging.number = max(staging.number, number)
            if staging.is_published(noted.key):
                notes.forget([number], self._now_ns, sync=False)
            elif noted.lost:
                staging.losses.lost[noted.key] = noted
            elif number not in numbers and notes.whole:
                self._lose(noted, "is missing", is_there=False)

    def _report_decided(self) -> None:
        """Report winners of this node that are missing and not in the notes."""
        staging = self._staging
        for query, state in staging.ledger.queries.items():
            decision, intent = state.decision, state.intent
            if decision is None or (intent is not None and intent.batch == decision.batch):
                continue
            for partition, attempt in staging.ledger.winners_here(
                query, decision.batch, self._node_uuid
            ):
                key = Key(query, decision.batch, partition, attempt)
                gone = staging.find(key) is None and key not in staging.losses.lost
                if gone and not staging.is_published(key):
                    self._report(f"{describe(key)} was decided for and is missing", messages=None)

    def _lose(self, noted: Noted, what: str, *, is_there: bool) -> None:
        path = self._store.path(noted.number)
        kept = f"; kept as {self._store.put_aside(noted.number)}" if is_there else ""
        text = f"{path} {what}: {describe(noted.key)} was sealed with {noted.seal.count} rows{kept}"
        self._notes.lose(noted.number, text, self._now_ns)
        self._staging.losses.lost[noted.key] = self._notes.sealed[noted.number]
        self._report(text, path=path, messages=noted.seal.count)

    def _report(self, text: str, *, messages: int | None, path: str = "") -> None:
        self._staging.shared.damage.report(DamageKind.STAGING, text, path=path, messages=messages)


def describe(key: Key) -> str:
    """A staging, formatted for people."""
    return (
        f"staging query={key.query} batch={key.batch} partition={key.partition} "
        f"attempt={key.attempt}"
    )
