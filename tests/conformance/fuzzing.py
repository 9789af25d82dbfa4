"""What the fuzz tests of both ports share: rude peers, and a watch over the daemon meanwhile.

    with undisturbed(nsqd) as watch:              # measures before, judges after
        watch.fuzz(conversations(parts), lambda steps: judge(converse(nsqd.tcp_port, steps)))

A conversation is a list of steps.  ``Send`` gives bytes in pieces of a size, ``Wait`` stalls,
``Look`` reads what is there, ``HalfClose`` says that no more will come, ``Reset`` leaves without
a word.  After a half close the daemon must close too, within ``CLOSE_SECONDS_MAX``.

Judged afterwards: the daemon answers promptly, its memory and descriptors are near where they were,
it logged no traceback, and a process that asked /ping all the while was never kept waiting.
``PENSTOCK_FUZZ_SECONDS`` makes a run longer.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from penstock.cli.usage import open_file_count, usage
from tests.conformance.probe import probing
from tests.support.daemon import Nsqd
from tests.support.timing import late_s, load_per_core
from tests.support.waits import eventually

T = TypeVar("T")

FUZZ_SECONDS = float(os.environ.get("PENSTOCK_FUZZ_SECONDS", "12"))
# Of one run of hypothesis; runs follow each other until the time is up.
EXAMPLE_COUNT = 100
CLOSE_SECONDS_MAX = 5.0
RECEIVED_SIZE_MAX = 1 << 20

# Growth beyond these would mean that something is kept of peers long gone.  What an allocator
# keeps for itself was seen to stay under 8 MB.
RSS_GROWTH_MAX = 24 << 20
DESCRIPTOR_GROWTH_MAX = 4

# The probe shares two cores with the fuzzer and whatever else runs.  A loop that is held by one
# peer's bytes is held for longer than this.
PING_MEDIAN_S_MAX = 0.05
PING_S_MAX = 1.0

FUZZING = settings(
    max_examples=EXAMPLE_COUNT,
    deadline=None,
    database=None,
    phases=(Phase.explicit, Phase.generate, Phase.shrink),
    suppress_health_check=list(HealthCheck),
)


# What a peer does


@dataclass(frozen=True)
class Send:
    data: bytes
    piece_size: int = 0  # 0: all at once


@dataclass(frozen=True)
class Wait:
    seconds: float


@dataclass(frozen=True)
class Look:
    pass


@dataclass(frozen=True)
class HalfClose:
    pass


@dataclass(frozen=True)
class Reset:
    pass


Step = Send | Wait | Look | HalfClose | Reset


def conversations(parts: st.SearchStrategy[bytes]) -> st.SearchStrategy[list[Step]]:
    """Peers that send ``parts``, in all manners."""
    sends = st.builds(Send, parts, st.sampled_from([0, 0, 0, 1, 3, 100, 1400]))
    pauses: st.SearchStrategy[Step] = st.sampled_from([Wait(0.001), Wait(0.005), Look(), Look()])
    middle = st.lists(st.one_of(sends, sends, sends, pauses), min_size=1, max_size=6)
    ends: st.SearchStrategy[Step] = st.sampled_from([HalfClose(), HalfClose(), Reset(), Look()])
    return st.builds(lambda steps, end: [*steps, end], middle, ends)


@dataclass(frozen=True)
class Heard:
    """What a peer received; ``ended``: all there was, up to the daemon's own end."""

    received: bytes
    ended: bool


def converse(port: int, steps: list[Step]) -> Heard:
    """Be such a peer once."""
    with socket.create_connection(("127.0.0.1", port), CLOSE_SECONDS_MAX) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer = _Peer(sock)
        try:
            for step in steps:
                peer.take(step)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the daemon has had enough, as it may
        return Heard(bytes(peer.received), peer.ended)


class _Peer:
    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.received = bytearray()
        self.ended = False

    def take(self, step: Step) -> None:
        match step:
            case Send(data, piece_size):
                self._send(data, piece_size)
            case Wait(seconds):
                time.sleep(seconds)
            case Look():
                self.sock.settimeout(0.01)
                self._receive()
            case HalfClose():
                with contextlib.suppress(OSError):  # it may be closed already
                    self.sock.shutdown(socket.SHUT_WR)
                self._read_to_end()
            case Reset():
                reset(self.sock)

    def _send(self, data: bytes, piece_size: int) -> None:
        self.sock.settimeout(CLOSE_SECONDS_MAX)
        # At most 300 pieces: the rest of a long one goes at once.
        pieces_end = min(len(data), 300 * piece_size)
        for at in range(0, pieces_end, piece_size or 1):
            self.sock.sendall(data[at : min(at + piece_size, pieces_end)])
        self.sock.sendall(data[pieces_end:])

    def _receive(self) -> bool:
        """Whether there may be more."""
        try:
            chunk = self.sock.recv(65536)
        except TimeoutError:
            return False
        self.received += chunk
        return bool(chunk)

    def _read_to_end(self) -> None:
        deadline_s = time.monotonic() + CLOSE_SECONDS_MAX
        with contextlib.suppress(TimeoutError):
            while (left_s := deadline_s - time.monotonic()) > 0:
                self.sock.settimeout(left_s)
                chunk = self.sock.recv(65536)
                if not chunk:
                    self.ended = len(self.received) < RECEIVED_SIZE_MAX
                    return
                if len(self.received) < RECEIVED_SIZE_MAX:
                    self.received += chunk
        raise AssertionError(f"not closed {CLOSE_SECONDS_MAX} s after a half close")


def reset(sock: socket.socket) -> None:
    """Leave with RST instead of FIN."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


# What is done to valid bytes


def pick(items: Sequence[T]) -> st.SearchStrategy[T]:
    """As sampled_from, which would show all of them, however long, in its reports."""
    return st.integers(0, len(items) - 1).map(items.__getitem__)


def mutated(valid: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """Valid bytes with up to three things done to them."""
    changes = st.lists(_changes(), max_size=3)
    return st.builds(_apply, valid, changes)


Change = tuple[str, float, bytes]


def _changes() -> st.SearchStrategy[Change]:
    kinds = st.sampled_from(["set", "insert", "delete", "repeat", "cut", "number"])
    places = st.floats(0, 1, exclude_max=True)
    new = st.one_of(
        st.binary(min_size=1, max_size=8),
        st.sampled_from([b"\r\n", b"\n", b"\0", b" ", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff"]),
        st.integers(-(1 << 70), 1 << 70).map(lambda number: b"%d" % number),
        st.integers(1, 200).map(lambda size: b"A" * size * size),
    )
    return st.tuples(kinds, places, new)


def _apply(data: bytes, changes: list[Change]) -> bytes:
    for kind, place, new in changes:
        at = int(place * len(data))
        if kind == "set":
            data = data[:at] + new + data[at + len(new) :]
        elif kind == "insert":
            data = data[:at] + new + data[at:]
        elif kind == "delete":
            data = data[:at] + data[at + len(new) :]
        elif kind == "repeat":
            data = data[:at] + data[at : at + 40] * min(50, len(new) + 1) + data[at + 40 :]
        elif kind == "cut":
            data = data[:at]
        else:
            data = _another_number(data, at, new)
    return data


def _another_number(data: bytes, at: int, new: bytes) -> bytes:
    """Replace the first digits at or after ``at``: a declared size, a count, a delay."""
    digits = b"0123456789"
    start = next((i for i in range(at, len(data)) if data[i] in digits), len(data))
    end = next((i for i in range(start, len(data)) if data[i] not in digits), len(data))
    return data[:start] + new + data[end:]


# The watch


@dataclass
class Watch:
    """A limited time for one test, and how much was done in it."""

    deadline_s: float
    count: int = 0

    def fuzz(self, conversations: st.SearchStrategy[T], converse: Callable[[T], None]) -> None:
        """Have conversations of that kind until the time is up."""

        @FUZZING
        @given(conversations)
        def run(conversation: T) -> None:
            self.count += 1
            converse(conversation)

        while time.monotonic() < self.deadline_s:
            run()


@contextlib.contextmanager
def undisturbed(nsqd: Nsqd, seconds: float = FUZZ_SECONDS) -> Iterator[Watch]:
    """Whatever is done within, the daemon is as well afterwards as it was before."""
    rss_size, descriptor_count = _at_rest(nsqd)
    with probing(nsqd.http_port) as ping_times_s:
        watch = Watch(time.monotonic() + seconds)
        yield watch
    assert nsqd.running, nsqd.log
    begun_s = time.monotonic()
    assert nsqd.get("/ping").text == "OK"
    assert time.monotonic() - begun_s < late_s(PING_S_MAX)
    assert eventually(lambda: _connection_count(nsqd) == 0), "connections are left"
    for topic in nsqd.stats("&include_clients=false")["topics"]:
        assert nsqd.post(f"/topic/delete?topic={topic['topic_name']}".replace("#", "%23"))
    assert eventually(
        lambda: open_file_count(nsqd.pid) <= descriptor_count + DESCRIPTOR_GROWTH_MAX
    ), f"{descriptor_count} descriptors before, now {_descriptors(nsqd)}"
    grown = _at_rest(nsqd)[0] - rss_size
    assert grown < RSS_GROWTH_MAX, f"{grown / 1e6:.1f} MB more memory after {watch.count}"
    complaints = [line for line in nsqd.lines if "Traceback" in line or " ERROR: " in line]
    assert not complaints, nsqd.log
    assert len(ping_times_s) > seconds * 5 / load_per_core(), "the probe hardly got to ask"
    assert ping_times_s[len(ping_times_s) // 2] < late_s(PING_MEDIAN_S_MAX), ping_times_s[-20:]
    assert ping_times_s[-1] < late_s(PING_S_MAX), ping_times_s[-20:]


def _connection_count(nsqd: Nsqd) -> int:
    """Connections of either port, without the one that asks."""
    gauges = {}
    for line in nsqd.get("/metrics").text.splitlines():
        name, _, value = line.partition(" ")
        if name in ("penstock_clients", "penstock_http_connections"):
            gauges[name] = int(value)
    return sum(gauges.values()) - 1


def _descriptors(nsqd: Nsqd) -> list[str]:
    return sorted(str(path.readlink()) for path in Path(f"/proc/{nsqd.pid}/fd").iterdir())


def _at_rest(nsqd: Nsqd) -> tuple[int, int]:
    """Resident memory, after what is free was given back, and descriptors."""
    # It always answers 500, as nsqd's does.
    assert nsqd.post("/debug/freememory").status == 500
    return usage(nsqd.pid).rss_size, open_file_count(nsqd.pid)
