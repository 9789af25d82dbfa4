"""Compares a topic's journal with nsqd.dat, and repairs the journal's state.

After kill -9 the two differ only by operations in progress (engine/catalog/listing.py):

    in the journal, not in nsqd.dat      was being created, or nsqd.dat is damaged  stays
    in nsqd.dat, gone in the journal     was being deleted                          stays deleted
    in nsqd.dat, not in the journal      the journal has lost it                    is created again
    paused in one of them                was being paused or unpaused               as in nsqd.dat
    another reader in nsqd.dat           was being taken over                       as in nsqd.dat
    a reader only in the journal         was being bound                            stays

What was acknowledged is in both, so nsqd.dat is never older than a truncated journal.  A channel
that the journal has lost starts at the first message in the log: it may get finished messages
again, and misses none.
"""

from __future__ import annotations

import logging

from penstock.engine.damage import DamageLog
from penstock.storage.damage import DamageKind
from penstock.storage.journal import ChannelState
from penstock.storage.metadata import ChannelEntry, TopicEntry
from penstock.storage.recovery import RecoveredTopic
from penstock.wire.names import is_ephemeral, is_valid_name

log = logging.getLogger(__name__)


def compare(
    damage: DamageLog, name: str, entry: TopicEntry | None, found: RecoveredTopic, *, listed: bool
) -> bool:
    """Restore what the journal of topic ``name`` has lost; whether to rewrite the journal.

    ``listed``: nsqd.dat exists, so a topic without an entry was still being created.
    """
    state = found.state
    problems = _problems(entry, found, listed)
    lost = _lost(entry, found)
    if lost:
        problems.append(f"channels listed in nsqd.dat were not in it: {', '.join(lost)}")
    changed = entry is not None and _apply_listing(entry, found, lost)
    if not problems:
        return changed
    if found.log.segment_count:
        # What was removed is unknown too: readers are warned that messages may be missing.
        state.whole_from = found.log.end
    for channel in lost:
        log.warning("topic=%s channel=%s: lost from the journal, starts again", name, channel)
    damage.report(
        DamageKind.JOURNAL,
        f"{found.journal.path}: {'; '.join(problems)}; finished messages may be delivered again",
        topic=name,
        path=found.journal.path,
    )
    return True


def is_new(entry: TopicEntry | None, found: RecoveredTopic) -> bool:
    """Whether the journal has a topic or channel that nsqd.dat does not list yet."""
    if entry is None:
        return True
    return not found.state.channels.keys() <= {channel.name for channel in entry.channels}


def _problems(entry: TopicEntry | None, found: RecoveredTopic, listed: bool) -> list[str]:
    state = found.state
    if state.corrupt_count:
        return [f"{state.corrupt_count} bad records skipped"]
    if found.journal.size:
        return []
    if entry is None and (listed or (not found.log.segment_count and not state.torn_size)):
        return []  # the topic was being created: a power cut may have lost its first records
    return ["missing or empty"]


def _lost(entry: TopicEntry | None, found: RecoveredTopic) -> list[str]:
    """The channels that nsqd.dat lists and the journal does not have."""
    if entry is None:
        return []
    known = found.state.channels.keys() | found.state.gone.keys()
    names = [channel.name for channel in entry.channels]
    return [n for n in names if n not in known and is_valid_name(n) and not is_ephemeral(n)]


def _apply_listing(entry: TopicEntry, found: RecoveredTopic, lost: list[str]) -> bool:
    """Apply nsqd.dat's state; whether the journal's was different."""
    state, first = found.state, found.log.first
    changed = bool(lost) or state.paused != entry.paused
    state.paused = entry.paused
    listed = {channel.name: channel for channel in entry.channels}
    for name, channel in state.channels.items():
        paused = listed[name].paused if name in listed else channel.paused
        changed = changed or channel.paused != paused
        channel.paused = paused
        changed = _apply_reader(channel, listed.get(name)) or changed
    for name in lost:
        state.channel_id_max += 1
        lost_entry = listed[name]
        state.channels[name] = ChannelState(
            *(state.channel_id_max, name, first, lost_entry.paused),
            low=first,
            pulled=lost_entry.pulled,
            named=lost_entry.named,
            reader=lost_entry.reader,
        )
    return changed


def _apply_reader(channel: ChannelState, entry: ChannelEntry | None) -> bool:
    """Apply nsqd.dat's reader: a damaged or truncated journal may have lost it."""
    if entry is None or entry.reader is None or not channel.pulled:
        return False
    if channel.reader is not None and channel.reader.identity == entry.reader.identity:
        return False  # the journal may have a newer name for it
    channel.reader = entry.reader
    return True
