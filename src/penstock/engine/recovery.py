"""From a data path to a running broker: restores topics, channels and deferred messages.

Blocking; it runs before a client can connect.  Topics and channels exist before the first overdue
deferred message is delivered (S2-2).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial

from penstock.core.ticket import Ticket
from penstock.core.window import Window
from penstock.engine.base import BaseTopic
from penstock.engine.catalog.comparison import compare, is_new
from penstock.engine.channel import Channel
from penstock.engine.components import Components
from penstock.engine.context import Context
from penstock.engine.disk import report
from penstock.engine.health import is_full
from penstock.engine.moves.recovery import RecoveredMoves
from penstock.engine.pull.channel import PullChannel
from penstock.engine.shared import random_number
from penstock.engine.staging.recovery import check_versions, open_stagings
from penstock.engine.topic import Topic
from penstock.errors import CorruptError
from penstock.storage.damage import DamageKind
from penstock.storage.datapath import TopicFolder
from penstock.storage.files import Files
from penstock.storage.journal import AWAITING, ChannelState, TopicState, span
from penstock.storage.metadata import ChannelEntry, Metadata, load_metadata
from penstock.storage.recovery import RecoveredTopic, is_segment, recover_topic
from penstock.wire.names import is_ephemeral, is_valid_name

log = logging.getLogger(__name__)

# With at least this many undelivered messages between two finished runs, the second one is a range
# that was skipped ahead of the cursor, not messages delivered out of order.
AHEAD_COUNT_MIN = 100_000


def open_data_path(components: Components) -> None:
    """Lock the data path and recover everything in it."""
    context, broker, damage = components.context, components.broker, components.damage
    context.data.open()
    check_versions(components.staging)
    damage.open()
    floor = components.identity.open()
    components.patterns.open()
    components.drain.open()
    _report_folders(components)
    components.health.reserve.hold()
    live_slots = components.deferred.opening.find()
    fired: dict[int, list[int]] = {}
    moves = RecoveredMoves(context, broker.topics, partial(_restore_again, components))
    end = floor
    metadata = _metadata(components)
    listed = {entry.name: entry for entry in metadata.topics}
    deleted = context.data.deleted_topics()
    for folder in _newest(components, context.data.topic_folders()):
        found = recover_topic(
            context.files,
            folder.path,
            context.options.node_id,
            floor,
            live_slots,
            context.options.max_bytes_per_file,
        )
        _report_topic(components, folder.topic, found)
        for slot, ordinals in found.fired.items():
            fired.setdefault(slot, []).extend(ordinals)
        entry = listed.get(folder.topic)
        doubtful = compare(damage, folder.topic, entry, found, listed=bool(metadata.version))
        if found.journal.size and is_new(entry, found):
            # A killed process may have left it unsynced; nsqd.dat is about to rely on it.
            context.files.sync(found.journal.path)
            context.files.sync_folder(folder.path)
        topic = _restore(components, folder, found)
        for channel in entry.channels if entry is not None else ():
            if gone := found.state.gone.get(channel.name):
                topic.listing.gone(*gone)
        broker.add_topic(topic)
        moves.add(topic, found.moved)
        _cut_deferred(components, topic)
        if doubtful or found.losses or found.state.mended:
            topic.keeper.rewrite()
        if not found.journal.size:
            # It was being created, or its journal is lost: create its first channels again.
            components.patterns.add_channels(topic)
            topic.save()
        if topic.log.segment_count:
            # Its tail may be unsynced, and finished segments may still exist.
            components.rounds.unsynced.add(topic)
            components.rounds.used.add(topic)
        end = max(end, found.log.end)
    _lease(components, end)
    moves.settle()
    components.deferred.recover(fired)
    components.drain.handover.resume()
    _add_listed(components, metadata, {folder.topic for folder in deleted})
    components.registry.save_all().add(lambda saved: _sweep(context, deleted, saved))
    open_stagings(components.staging)
    components.staging.resume()


def _report_topic(components: Components, topic: str, found: RecoveredTopic) -> None:
    """Log and report what is not as it was written."""
    for note in found.notes:
        log.warning("topic=%s: %s", topic, note)
    for note in found.zeros:
        # With --sync-every=1 each kill leaves some, and no message in them was acknowledged.
        level = logging.INFO if components.context.options.sync_every == 1 else logging.WARNING
        log.log(level, "topic=%s: %s", topic, note)
    for loss in found.losses:
        components.damage.report(
            loss.kind, loss.text, topic=topic, path=loss.path, messages=loss.messages
        )


def _report_folders(components: Components) -> None:
    """Report missing folders on a node that has run before."""
    kinds = {
        components.context.data.topics: DamageKind.TOPIC,
        components.context.data.deferred: DamageKind.DEFERRED,
        components.context.data.staging: DamageKind.STAGING,
    }
    for folder in components.context.data.made if components.identity.used else ():
        components.damage.report(
            kinds[folder], f"{folder} was missing with everything in it; created again", path=folder
        )


def _lease(components: Components, end: int) -> None:
    """Must work on a full disk too: only consuming makes room (R8)."""
    health = components.health
    try:
        components.identity.lease(end)
    except OSError as error:
        if not is_full(error) or not health.reserve.held:
            raise
        health.failed(error)
        health.reserve.free()
        components.identity.lease(end)


def _newest(components: Components, folders: list[TopicFolder]) -> Iterator[TopicFolder]:
    """One folder per topic.  Of two, the one with the higher indexes is the newer instance.

    Earlier versions left the older one when a delete failed; or it was copied there by hand.
    """
    by_name: dict[str, list[TopicFolder]] = {}
    for folder in folders:
        by_name.setdefault(folder.topic, []).append(folder)
    for found in by_name.values():
        if len(found) > 1:
            found.sort(key=lambda folder: _reach(components.context.files, folder))
            for old in found[:-1]:
                _set_aside(components, old, found[-1])
        yield found[-1]


def _reach(files: Files, folder: TopicFolder) -> tuple[int, int]:
    """The highest and the lowest index in the journal and the names of the segments.

    An instance starts above all indexes of earlier ones, even if it has no message yet.
    """
    names = files.list(folder.path)
    bases = [int(name[:20]) for name in names if is_segment(name)]
    low, high = span(files.read(f"{folder.path}/journal")) if "journal" in names else (0, 0)
    return max([high, *bases]), min([low, *bases])


def _set_aside(components: Components, old: TopicFolder, new: TopicFolder) -> None:
    aside = f"{old.path}.old"
    components.context.files.rename(old.path, aside)
    components.context.files.sync_folder(components.context.data.topics)
    components.damage.report(
        DamageKind.TOPIC,
        f"there are two folders for this topic: {new.path} is used,"
        f" the older one is kept as {aside}",
        topic=old.topic,
        path=old.path,
    )


def _metadata(components: Components) -> Metadata:
    """Load nsqd.dat.  The folders are authoritative: a damaged file is kept aside and rewritten."""
    path = components.context.data.metadata
    if not components.context.files.exists(path):
        if components.identity.used and components.context.data.topic_folders():
            components.damage.report(
                DamageKind.METADATA, f"{path} was missing; written again from the topics", path=path
            )
        return Metadata()
    try:
        return load_metadata(components.context.files, path)
    except CorruptError as error:
        components.context.files.write_new(f"{path}.bad", components.context.files.read(path))
        components.damage.report(DamageKind.METADATA, f"{error}; kept as nsqd.dat.bad", path=path)
        return Metadata()


def _sweep(context: Context, deleted: list[TopicFolder], saved: Ticket) -> None:
    """Remove the folders of deleted topics once nsqd.dat no longer lists them."""
    if saved.error is not None or not deleted:
        return

    def remove() -> None:
        for folder in deleted:
            context.data.remove(folder.path)

    def removed(_: None, error: Exception | None) -> None:
        if error is not None:
            report("deleted topic", error)

    context.disk.submit(remove, removed)


def _add_listed(components: Components, metadata: Metadata, deleted: set[str]) -> None:
    """Create topics that nsqd.dat lists and that have no folder: it may be from a Go nsqd.

    Except ``deleted`` ones: nsqd was killed before it wrote nsqd.dat.
    """
    broker = components.broker
    for entry in metadata.topics:
        if not is_valid_name(entry.name):
            log.warning("nsqd.dat: skipping creation of invalid topic %s", entry.name)
            continue
        if entry.name in broker.topics or is_ephemeral(entry.name) or entry.name in deleted:
            continue
        if components.identity.used:
            components.damage.report(
                DamageKind.TOPIC,
                "nsqd.dat lists it, but it has no folder: its messages are lost, unless it was"
                " added to nsqd.dat by hand",
                topic=entry.name,
                path=components.context.data.topics,
            )
        topic, _ = broker.create_topic(entry.name)
        for channel_entry in entry.channels:
            if not is_valid_name(channel_entry.name):
                log.warning("nsqd.dat: skipping creation of invalid channel %s", channel_entry.name)
                continue
            channel = _add_channel(components, topic, channel_entry)
            if channel_entry.paused:
                channel.pause(True)
        if entry.paused:
            topic.pause(True)


def _add_channel(components: Components, topic: BaseTopic, entry: ChannelEntry) -> Channel:
    if entry.pulled and isinstance(topic, Topic):
        channel = components.pulls.open(topic, entry.name, topic.released)[0]
        if entry.reader is not None:
            channel.restore_reader(entry.reader)
        return channel
    return topic.create_channel(entry.name, named=entry.named)[0]


def _restore(components: Components, folder: TopicFolder, found: RecoveredTopic) -> Topic:
    state, topic_log = found.state, found.log
    topic = Topic(components.shared, folder.topic, topic_log, found.journal, folder.instance)
    topic.listing.journaled = found.journal.size > 0
    topic.feed.pause(state.paused)
    topic.listing.paused = state.paused
    topic.void_stamp = state.void_stamp
    if state.frozen == AWAITING:
        topic.await_channels()
    topic.feed.restore(_released(state, topic))
    topic.recover(state.whole_from, state.channel_id_max, state.moves_settled_end)
    topic.recover_files(state.files)
    components.policies.recover(topic, None, state.policy)
    components.policies.admit_topic(topic)
    for channel_state in state.channels.values():
        channel = _restore_channel(components, topic, channel_state)
        components.policies.recover(topic, channel, channel_state.policy)
        topic.add_recovered(channel)
    topic.feed.restore_held(topic_log.count_between(topic.released, topic_log.end))
    for channel in topic.channels.values():
        components.policies.admit_channel(channel)
    topic.open()
    return topic


def _cut_deferred(components: Components, topic: Topic) -> None:
    """Drop deferred messages from before the topic or a channel was emptied."""
    stamps = {topic.void_stamp, *(channel.defer_stamp for channel in topic.channels.values())}
    for stamp in sorted(filter(None, stamps)):
        components.deferred.cut(topic.instance, stamp)
        components.identity.raise_stamp(stamp)


def _released(state: TopicState, topic: Topic) -> int:
    if state.channels and not state.paused and state.frozen != AWAITING:
        return topic.log.end
    return min(max(state.released, topic.log.first), topic.log.end)


def _restore_channel(components: Components, topic: Topic, state: ChannelState) -> Channel:
    if state.pulled:
        pulled = PullChannel(components.pulls, topic, state.name, state.low, id=state.id)
        pulled.paused, pulled.defer_stamp = state.paused, state.defer_stamp
        pulled.reader, pulled.partial = state.reader, state.partial
        return pulled
    low = max(state.low, min(topic.log.first, topic.log.end))
    cursor, ahead = _split_runs(topic, state, low)
    window = Window(low, seed=random_number())
    for index in _unfinished(topic, state, low, cursor):
        attempts, due_ns = state.marks.get(index, (0, 0))
        window.restore(index, attempts, due_ns)
    window.advance(max(cursor, window.cursor))
    window.queued_count = topic.log.count_between(window.cursor, topic.released)
    for start, end in ahead:
        window.skip(start, end, topic.log.count_between(start, min(end, topic.released)))
    window.drain()
    if state.buried is not None:
        _restore_buried(topic, state, window)
    channel = Channel(topic, state.name, window, id=state.id)
    channel.paused = state.paused
    channel.defer_stamp = state.defer_stamp
    channel.named = state.named
    channel.first_id = state.first_id or state.id
    channel.begun_ns, channel.begun_end = state.begun_ns, state.begun_end
    components.scan.watch(channel)
    return channel


def _restore_again(components: Components, topic: Topic, state: ChannelState) -> Channel:
    """Restore a channel from a state that has changed since."""
    channel = _restore_channel(components, topic, state)
    components.policies.recover(topic, channel, state.policy)
    return channel


def _restore_buried(topic: Topic, state: ChannelState, window: Window) -> None:
    assert state.buried is not None
    gone_count = state.buried.keep(topic.log.existing(0, topic.log.end))
    if gone_count:
        log.warning(
            "topic=%s channel=%s: %d buried messages are not in the log any more",
            *(topic.name, state.name, gone_count),
        )
    window.restore_buried(state.buried)


def _split_runs(topic: Topic, state: ChannelState, low: int) -> tuple[int, list[tuple[int, int]]]:
    """The cursor, and the finished runs beyond it.

    Every unfinished message below the cursor was delivered, or lies between delivered ones.
    Messages that the topic holds back were not: a run there will be skipped (R17).
    """
    cursor = max([low, *(index + 1 for index in state.marks)])
    runs = [run for run in state.runs if run[1] > cursor]
    for place, (start, end) in enumerate(runs):
        far = topic.log.count_between(cursor, start) >= AHEAD_COUNT_MIN
        if far or start >= topic.released:
            return cursor, [(max(cursor, a), b) for a, b in runs[place:]]
        if end > topic.released:
            cursor = topic.released
            return cursor, [(max(cursor, a), b) for a, b in runs[place:]]
        cursor = end
    return cursor, []


def _unfinished(topic: Topic, state: ChannelState, low: int, cursor: int) -> Iterator[int]:
    """Existing indexes in low..cursor that no run covers, ascending."""
    runs = [run for run in state.runs if run[0] < cursor]
    place = 0
    for start, end in topic.log.existing(low, cursor):
        index = start
        while index < end:
            while place < len(runs) and runs[place][1] <= index:
                place += 1
            if place < len(runs) and runs[place][0] <= index:
                index = runs[place][1]
            else:
                yield index
                index += 1
