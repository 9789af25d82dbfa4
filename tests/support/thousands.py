"""A topic with thousands of retained segments, without the gigabytes: sparse files.

Each file has a true header, a first batch with one message, a hole, a last batch, and a true footer
whose sparse index names both.  So they open, are found by time and by index, and are read at both
ends as full ones are.
"""

from __future__ import annotations

from pathlib import Path

from penstock.core.appender import Batch
from penstock.core.batches import HEADER_SIZE
from penstock.core.tables import Tally
from penstock.storage.files import Files
from penstock.storage.journal import (
    FileState,
    encode_channel,
    encode_file,
    encode_progress,
    encode_topic,
)
from penstock.storage.segment_format import encode_header, footer, segment_path
from tests.unit.storage.build import frame

# The index of the first message; the clock's floor of a new node is above it.
FIRST = 1000
COUNT = 1000  # messages of a segment
MINUTE_NS = 60_000_000_000


def write_thousands(
    root: Path, topic: str, segment_count: int, *, node_id: int, end_ns: int, size: int = 10 << 20
) -> int:
    """Segments a minute apart, the newest at ``end_ns``, all finished by channel "c".

    Returns the index after the last message.
    """
    instance = 1 + int.from_bytes(topic.encode(), "big")
    folder = root / "penstock" / "topics" / f"{topic}~{instance:016x}"
    folder.mkdir(parents=True)
    files = Files()
    end = FIRST + segment_count * COUNT
    records = [
        encode_topic(end, 0, False, 0),
        encode_channel(1, FIRST, False, 0, "c"),
        encode_progress(1, end),
    ]
    for number in range(segment_count):
        base = FIRST + number * COUNT
        append_ns = end_ns - (segment_count - 1 - number) * MINUTE_NS
        path = segment_path(str(folder), base)
        _write_sparse(path, base, append_ns, size, instance, node_id)
        records.append(encode_file(base, FileState(base, base + COUNT, COUNT)))
    files.append(f"{folder}/journal", [b"".join(records)])
    files.close()
    return end


def _write_sparse(
    path: str, base: int, append_ns: int, size: int, instance: int, node_id: int
) -> None:
    tally = Tally(base)
    first, last = (_batch(index, append_ns, node_id) for index in (base, base + COUNT - 1))
    body = first.header() + first.payload
    end = last.header() + last.payload
    after = HEADER_SIZE + len(body)
    tally.note(HEADER_SIZE, base, COUNT - 1, after, append_ns, 0, 0)
    tally.note(size - len(end), base + COUNT - 1, 1, size, append_ns + 1, 0, 0)
    with Path(path).open("wb") as file:
        file.write(encode_header(node_id, base, base, append_ns, instance) + body)
        file.seek(size - len(end))
        file.write(end + footer(tally))


def _batch(index: int, append_ns: int, node_id: int) -> Batch:
    return Batch(frame(index, b"%d" % index, node_id=node_id), index, 1, append_ns, append_ns)
