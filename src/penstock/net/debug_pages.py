"""/debug: what the running process does.

nsqd serves Go's profiler here.  The paths are the same, the pages are what a Python process has:

    /debug/pprof/            this list
    /debug/pprof/goroutine   asyncio's tasks and every thread's stack
    /debug/pprof/heap        objects by type; with PYTHONTRACEMALLOC=1 also the lines they came from
    /debug/pprof/profile     where the loop's thread spends its time: ?seconds=30, at most 60
    /debug/pprof/cmdline     the command line, NUL between arguments
    /debug/pprof/threadcreate, block, symbol

Everything is plain text.  A profile is collapsed stacks, "a;b;c 12" a line, as flame graph tools
read them; the compiled core appears as the Python line that called it.

nsqd's PUT /debug/setblockrate and POST /debug/freememory take effect and then always answer 500,
because its handlers return nothing.  Scripts rely on it, so we do the same.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import sys
import threading
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from types import FrameType

from penstock.core.ticket import Ticket
from penstock.net.http_message import INTERNAL_ERROR, TEXT, Pending, Request, Response
from penstock.net.long_answers import gather
from penstock.wire.quote import quote

PROFILE_SECONDS = 30.0
PROFILE_SECONDS_MAX = 60.0
# As often as Go's profiler samples.
SAMPLE_INTERVAL_S = 0.01
STACK_DEPTH_MAX = 64
STACK_COUNT_MAX = 10_000
TASK_COUNT_MAX = 1_000
TYPE_COUNT_MAX = 100
# Objects counted for one piece of an answer.
OBJECT_COUNT = 20_000
# Digits of a 64-bit integer; longer numbers are refused before they are parsed.
_DIGITS_MAX = 19


class DebugPages:
    """Create it on the thread that runs the loop: that is the one profiled."""

    def __init__(self) -> None:
        self._loop_thread = threading.get_ident()
        self._profiling = False

    def index(self, request: Request) -> Response:
        assert __doc__ is not None
        pages = [line for line in __doc__.splitlines() if line.startswith("    /debug")]
        return _text("\n".join(["/debug/pprof/", "", *pages, ""]))

    def cmdline(self, request: Request) -> Response:
        return _text("\0".join([sys.executable, *sys.argv]))

    def symbol(self, request: Request) -> Response:
        # What Go answers to a request without addresses.
        return _text("num_symbols: 1\n")

    def block(self, request: Request) -> Response:
        return _text("nothing blocks here but the loop: see penstock_loop_lag_seconds\n")

    def threads(self, request: Request) -> Response | Pending:
        return gather(_threads(), (TEXT,))

    def goroutine(self, request: Request) -> Response | Pending:
        return gather(_tasks_and_threads(), (TEXT,))

    def heap(self, request: Request) -> Response | Pending:
        return gather(_heap(), (TEXT,))

    # Profile

    def profile(self, request: Request) -> Response | Pending:
        try:
            seconds = float(request.query.get("seconds", PROFILE_SECONDS))
        except ValueError:
            seconds = 0.0
        if not 0 < seconds <= PROFILE_SECONDS_MAX:
            return _text(f"seconds must be above 0 and up to {PROFILE_SECONDS_MAX:.0f}\n", 400)
        if self._profiling:
            return _text("Could not enable CPU profiling: cpu profiling already in use\n", 500)
        self._profiling = True
        result: list[bytes] = []
        ticket = _in_thread(
            lambda: result.append(sample(self._loop_thread, seconds)), self._profiled
        )
        return Pending(ticket, lambda _: Response(200, b"".join(result), (TEXT,)))

    def _profiled(self) -> None:
        self._profiling = False

    # Routes that nsqd answers with 500

    def set_block_rate(self, request: Request) -> Response:
        given = request.query.get("rate", "")
        digits = given[1:] if given[:1] in ("+", "-") else given
        if not (digits.isascii() and digits.isdecimal()):
            why = "invalid syntax"
        elif len(digits) > _DIGITS_MAX:
            why = "value out of range"
        else:
            return INTERNAL_ERROR
        name = quote(given.encode("utf-8", "surrogateescape"))
        return _text(f"invalid block rate : strconv.Atoi: parsing {name}: {why}", 400)

    def free_memory(self, request: Request) -> Pending:
        return Pending(_in_thread(free_memory), lambda _: INTERNAL_ERROR)


def _text(text: str, status: int = 200) -> Response:
    return Response(status, text.encode("utf-8", "replace"), (TEXT,))


def _in_thread(work: Callable[[], None], then: Callable[[], None] | None = None) -> Ticket:
    """Run ``work`` on a thread; then, on the loop, call ``then`` and settle the ticket."""
    loop = asyncio.get_running_loop()
    ticket = Ticket()

    def done() -> None:
        if then is not None:
            then()
        ticket.settle()

    def run() -> None:
        try:
            work()
        finally:
            loop.call_soon_threadsafe(done)

    threading.Thread(target=run, name="debug", daemon=True).start()
    return ticket


def free_memory() -> None:
    """Collect garbage and give free pages back to the kernel."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def sample(thread: int, seconds: float) -> bytes:
    """Sample a thread's stack a hundred times a second: collapsed stacks, most common first."""
    stacks: Counter[str] = Counter()
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        frame = sys._current_frames().get(thread)
        if frame is None:
            break
        stack = ";".join(reversed([_where(at) for at in _walk(frame)]))
        stacks[stack if stack in stacks or len(stacks) < STACK_COUNT_MAX else "others"] += 1
        del frame
        time.sleep(SAMPLE_INTERVAL_S)
    return "".join(f"{stack} {count}\n" for stack, count in stacks.most_common()).encode()


def _walk(frame: FrameType | None) -> Iterator[FrameType]:
    for _ in range(STACK_DEPTH_MAX):
        if frame is None:
            return
        yield frame
        frame = frame.f_back


def _where(frame: FrameType) -> str:
    code = frame.f_code
    module = frame.f_globals.get("__name__", "?")
    return f"{module}.{code.co_qualname}:{frame.f_lineno}"


def _tasks_and_threads() -> Iterator[bytes]:
    tasks = list(asyncio.all_tasks())
    yield f"tasks: {len(tasks)}\n".encode()
    for task in tasks[:TASK_COUNT_MAX]:
        lines = [f"\ntask {task.get_name()}: {task.get_coro()!r}"]
        lines += [f"    {_where(frame)}" for frame in task.get_stack(limit=STACK_DEPTH_MAX)]
        yield ("\n".join(lines) + "\n").encode("utf-8", "replace")
    yield b"\n"
    yield from _threads()


def _threads() -> Iterator[bytes]:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = sys._current_frames()
    text = [f"threads: {len(frames)}\n"]
    for number, frame in frames.items():
        text.append(f"\nthread {number} {names.get(number, '?')}\n")
        text += [f"    {_where(at)}\n" for at in _walk(frame)]
    yield "".join(text).encode("utf-8", "replace")


def _heap() -> Iterator[bytes]:
    objects = gc.get_objects()
    total = len(objects)
    counts: Counter[type] = Counter()
    while objects:
        counts.update(type(thing) for thing in objects[-OBJECT_COUNT:])
        del objects[-OBJECT_COUNT:]
        yield b""
    text = [
        f"objects known to the collector: {total}, frozen at start: {gc.get_freeze_count()}\n",
        f"blocks of Python's allocator: {sys.getallocatedblocks()}\n",
        f"collections by generation: {[stats['collections'] for stats in gc.get_stats()]}\n\n",
    ]
    text += [
        f"{count:10d} {kind.__module__}.{kind.__qualname__}\n"
        for kind, count in counts.most_common(TYPE_COUNT_MAX)
    ]
    yield "".join(text).encode("utf-8", "replace")
    yield _allocations()


def _allocations() -> bytes:
    if not tracemalloc.is_tracing():
        return b"\nallocations by line: start nsqd with PYTHONTRACEMALLOC=1 to have them here\n"
    current, peak = tracemalloc.get_traced_memory()
    text = [f"\nallocated: {current} bytes, at most {peak}\n"]
    for line in tracemalloc.take_snapshot().statistics("lineno")[:TYPE_COUNT_MAX]:
        frame = line.traceback[0]
        text.append(
            f"{line.size:12d} bytes {line.count:8d} blocks {frame.filename}:{frame.lineno}\n"
        )
    return "".join(text).encode("utf-8", "replace")
