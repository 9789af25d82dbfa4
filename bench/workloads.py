"""The workloads as data.

A workload is a function of `throughput`, `timing`, `footprint` or `floods` with its parameters, the
makes of broker it runs on, and the targets for its figures.  `quick` replaces parameters for a
short run; targets are for full runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from bench import dead, floods, footprint, retention, throughput, timing
from bench.broker import CERTIFICATE, Broker

OURS = ("penstock",)
BOTH = ("penstock", "go")
# Everything in memory: Go at its fastest.
IN_MEMORY = ("--mem-queue-size=10000000",)


@dataclass(frozen=True)
class Target:
    """``metric`` at most, or at least, ``limit``; with ``of_go``, ``limit`` times Go's figure."""

    metric: str
    limit: float
    at_least: bool = False
    of_go: bool = False

    def judge(self, ours: float, go: float | None) -> bool | None:
        """Whether the target is met; None if Go's figure is needed and missing."""
        if self.of_go and go is None:
            return None
        limit = self.limit * go if self.of_go and go is not None else self.limit
        return ours >= limit if self.at_least else ours <= limit

    def __str__(self) -> str:
        sign = "at least" if self.at_least else "at most"
        return f"{self.metric} {sign} {self.limit:.3g}{' times Go' if self.of_go else ''}"


@dataclass(frozen=True)
class Workload:
    """One thing to measure."""

    name: str
    title: str
    run: Callable[..., Mapping[str, float]]
    full: dict[str, Any]
    quick: dict[str, Any]
    makes: tuple[str, ...] = BOTH
    rounds: int = 1
    targets: tuple[Target, ...] = ()
    flags: tuple[str, ...] = ()
    go_flags: tuple[str, ...] = field(default=())

    def measure(self, broker: Broker, *, quick: bool) -> dict[str, float]:
        parameters = {**self.full, **(self.quick if quick else {})}
        return {name: float(value) for name, value in self.run(broker, **parameters).items()}


COMPLETE = Target("missing", 0)
ONCE = Target("doubled", 0)

WORKLOADS = (
    Workload(
        "publish",
        "publish: MPUB of 200 messages of 200 bytes, one connection, each OK awaited",
        throughput.publish,
        full={"messages": 2_000_000, "batch": 200},
        quick={"messages": 400_000},
        rounds=9,  # both makes' rounds differ by a third here (docs/benchmarks.md)
        targets=(
            Target("cpu_us", 0.5, of_go=True),
            Target("rate", 1.4, at_least=True, of_go=True),
        ),
        go_flags=IN_MEMORY,
    ),
    Workload(
        "publish-4",
        "publish: MPUB of 200 messages of 200 bytes, four connections, each OK awaited",
        throughput.publish,
        full={"messages": 2_000_000, "batch": 200, "connections": 4},
        quick={"messages": 400_000},
        rounds=3,
        targets=(
            Target("cpu_us", 0.5, of_go=True),
            Target("rate", 1.4, at_least=True, of_go=True),
        ),
        go_flags=IN_MEMORY,
    ),
    Workload(
        "publish-single",
        "publish: single PUBs over 50 connections, each OK awaited",
        throughput.publish,
        full={"messages": 200_000, "batch": 1, "connections": 50},
        quick={"messages": 50_000},
        rounds=3,
        targets=(
            Target("cpu_us", 1.0, of_go=True),
            Target("rate", 1.0, at_least=True, of_go=True),
        ),
        go_flags=IN_MEMORY,
    ),
    Workload(
        "publish-alone",
        "publish: single PUBs over one connection, each OK awaited",
        throughput.publish,
        full={"messages": 60_000, "batch": 1},
        quick={"messages": 10_000},
        rounds=3,
        targets=(
            Target("cpu_us", 1.0, of_go=True),
            Target("rate", 1.0, at_least=True, of_go=True),
        ),
        go_flags=IN_MEMORY,
    ),
    Workload(
        "publish-http",
        "publish: /pub of 200 bytes over 32 connections, each answer awaited",
        throughput.publish_http,
        full={"requests": 100_000, "batch": 1, "connections": 32},
        quick={"requests": 20_000},
        rounds=3,
        targets=(
            Target("cpu_us", 1.0, of_go=True),
            Target("rate", 1.0, at_least=True, of_go=True),
        ),
        go_flags=IN_MEMORY,
    ),
    Workload(
        "publish-http-4",
        "publish: /mpub of 200 messages of 200 bytes, four connections, each answer awaited",
        throughput.publish_http,
        full={"requests": 10_000, "batch": 200, "connections": 4},
        quick={"requests": 2_000},
        rounds=3,
        go_flags=IN_MEMORY,
    ),
    Workload(
        "consume",
        "consume: a backlog, RDY 2500, one connection",
        throughput.consume,
        full={"messages": 2_000_000, "connections": 1},
        quick={"messages": 300_000},
        rounds=3,
        targets=(
            Target("cpu_us", 1 / 3, of_go=True),
            Target("rate", 1.8, at_least=True, of_go=True),
            COMPLETE,
            ONCE,
        ),
        go_flags=IN_MEMORY,
    ),
    Workload(
        "consume-alone",
        "consume: a backlog, RDY 1, one connection",
        throughput.consume,
        full={"messages": 60_000, "connections": 1, "rdy": 1},
        quick={"messages": 10_000},
        rounds=3,
        targets=(
            Target("cpu_us", 1.0, of_go=True),
            Target("rate", 1.0, at_least=True, of_go=True),
            COMPLETE,
            ONCE,
        ),
        go_flags=IN_MEMORY,
    ),
    Workload(
        "consume-4",
        "consume: a backlog, RDY 2500, four connections sharing a channel",
        throughput.consume,
        full={"messages": 2_000_000, "connections": 4},
        quick={"messages": 300_000},
        rounds=2,
        targets=(COMPLETE, ONCE),
        go_flags=IN_MEMORY,
    ),
    Workload(
        "consume-upgraded",
        "consume: a backlog in clear, over TLS, with snappy, with deflate, with TLS and snappy",
        throughput.consume_upgraded,
        full={
            "messages": 1_000_000,
            "ways": ["plain", "tls", "snappy", "deflate", "tls+snappy"],
        },
        quick={"messages": 200_000},
        rounds=3,
        targets=(
            Target("share@tls", 0.5, at_least=True),
            Target("share@snappy", 0.5, at_least=True),
        ),
        flags=(CERTIFICATE,),
        go_flags=(*IN_MEMORY, CERTIFICATE),
    ),
    Workload(
        "channels",
        "publish into topics with 1, 2, 5 and 10 channels",
        throughput.publish_by_channels,
        full={"messages": 1_000_000, "channels": [1, 2, 5, 10]},
        quick={"messages": 300_000, "channels": [1, 10]},
        targets=(Target("growth", 1.15),),
        go_flags=IN_MEMORY,
    ),
    Workload(
        "backlogs",
        "consume a million messages out of backlogs of 100 thousand to 4 million",
        throughput.consume_by_backlog,
        full={"messages": 1_000_000, "backlogs": [100_000, 1_000_000, 4_000_000]},
        quick={"messages": 200_000, "backlogs": [50_000, 400_000]},
        targets=(Target("growth", 1.15),),
        go_flags=IN_MEMORY,
    ),
    Workload(
        "backlog",
        "a backlog of 4 million messages: memory, and restart after kill -9",
        footprint.backlog,
        full={"messages": 4_000_000},
        quick={"messages": 500_000},
        makes=OURS,
        # 400 MB, which is 381 MiB.
        targets=(Target("rss_mib", 381), Target("restart_s", 2), COMPLETE),
    ),
    Workload(
        "redelivery",
        "A-1: 1,000 channels, one message in flight each: from deadline to redelivery",
        timing.redelivery,
        full={"channels": 1000, "wait_s": 40},
        quick={"channels": 200, "wait_s": 15},
        makes=("penstock", "penstock-sample", "go"),
        targets=(Target("p99_ms", 100), COMPLETE),
    ),
    Workload(
        "deferred",
        "A-2: a million deferred messages over 24 hours, and those due in the next seconds",
        timing.deferred,
        full={"far": 1_000_000, "near": 20_000, "near_s": 10},
        quick={"far": 100_000, "near": 5_000, "near_s": 4},
        targets=(Target("p99_ms", 50), Target("early", 0), COMPLETE),
        go_flags=("--max-req-timeout=24h", *IN_MEMORY),
    ),
    Workload(
        "deferred-restart",
        "A-4: deferred messages across a clean restart and a kill -9",
        timing.deferred_restart,
        full={"count": 2_000, "ends": ["term", "kill"], "from_ms": 4_000, "to_ms": 8_000},
        quick={"count": 500, "from_ms": 2_000, "to_ms": 4_000},
        targets=(
            Target("term_early", 0),
            Target("term_missing", 0),
            Target("kill_early", 0),
            Target("kill_missing", 0),
        ),
    ),
    Workload(
        "lost-consumer",
        "A-7: a consumer dies with 2,500 messages in flight: until another has them",
        timing.lost_consumer,
        full={"in_flight": 2500, "msg_timeout_s": 5},
        quick={"msg_timeout_s": 2},
        targets=(COMPLETE,),
    ),
    Workload(
        "idle",
        "A-8: 10,000 idle channels (100 topics of 100)",
        footprint.idle,
        full={"topics": 100, "channels": 100, "seconds": 10},
        quick={"topics": 20, "seconds": 4},
        targets=(Target("cpu_percent", 2), Target("open_files", 500)),
    ),
    Workload(
        "stuck",
        "one message stuck in flight, 20 million finished behind it",
        footprint.stuck,
        full={"warm": 1_000_000, "messages": 20_000_000},
        quick={"warm": 200_000, "messages": 1_000_000},
        makes=OURS,
        targets=(Target("rss_growth_mib", 16), Target("journal_kib", 4096), COMPLETE),
    ),
    Workload(
        "retained",
        "5,000 retained segments beside one: a start, memory, a publish, a search by time",
        retention.retained,
        full={"segments": 5000, "seeks": 200, "messages": 50_000},
        quick={"messages": 10_000},
        makes=OURS,
        rounds=3,
        targets=(
            Target("start_s", 3),
            Target("rss_growth_mib", 100),
            Target("cpu_factor", 1.05),
            Target("seek_ms", 50),
            COMPLETE,
        ),
    ),
    Workload(
        "retaining",
        "MPUBs, a million messages a second, while retained segments go as fast as new ones come",
        retention.retaining,
        full={"retain_mib": 512, "rate": 1_000_000, "seconds": 12},
        quick={"retain_mib": 128, "seconds": 4},
        makes=OURS,
        rounds=3,
        targets=(
            Target("p99_ms", 5),
            Target("rate", 900_000, at_least=True),
            Target("gone_share", 0.3, at_least=True),
            Target("kept_share", 1, at_least=True),
        ),
    ),
    Workload(
        "buried",
        "a million buried messages: memory of each, and a kick of all",
        dead.buried,
        full={"messages": 1_000_000},
        quick={"messages": 200_000},
        makes=OURS,
        rounds=3,
        targets=(
            Target("each_size", 40),
            Target("kick_rate", 200_000, at_least=True),
            COMPLETE,
        ),
    ),
    Workload(
        "failing",
        "consume with a tenth of the messages requeued until they are buried, and with none",
        dead.failing,
        full={"messages": 500_000, "attempts": 3},
        quick={"messages": 100_000},
        makes=OURS,
        rounds=3,
        targets=(Target("kept", 0.8, at_least=True), COMPLETE),
    ),
    Workload(
        "latency",
        "latency from publisher to consumer at 10,000 messages a second",
        timing.latency,
        full={"rate": 10_000, "seconds": 8},
        quick={"seconds": 3},
        rounds=2,
        targets=(Target("p50_ms", 1), Target("p99_ms", 5), COMPLETE),
    ),
    Workload(
        "cold",
        "others' latency at 1,000 messages a second while a cold backlog of 3 GB is read",
        timing.cold_read,
        rounds=3,
        full={"count": 750_000, "size": 4096, "rate": 1000, "seconds": 4},
        quick={"count": 60_000, "seconds": 2},
        targets=(Target("p99_ms", 20), COMPLETE),
    ),
    Workload(
        "new-topics",
        "others' latency at 500 messages a second while 6,000 new topics are published to",
        floods.new_topics,
        rounds=3,
        full={"topics": 6000, "rate": 500, "seconds": 10},
        quick={"topics": 1000, "seconds": 3},
        targets=(Target("p50_ms", 5), COMPLETE),
    ),
    Workload(
        "new-topics-synced",
        "the same for 2,000 new topics with --sync-every=1",
        floods.new_topics,
        rounds=3,
        full={"topics": 2000, "rate": 200, "seconds": 10},
        quick={"topics": 500, "seconds": 3},
        makes=OURS,
        targets=(Target("p50_ms", 20), COMPLETE),
        flags=("--sync-every=1",),
    ),
    Workload(
        "many-channels",
        "making and deleting 1,000, 2,000 and 4,000 channels of a topic",
        floods.channel_costs,
        full={"channels": [1000, 2000, 4000]},
        quick={"channels": [250, 500]},
        targets=(Target("channel_growth", 1.5),),
    ),
)
