"""Which of several hosts to use next.

    round-robin      one after the other, whatever became of them
    hostpool         one after the other, without those that failed lately
    epsilon-greedy   mostly those that answer fast, sometimes the next one in turn, to learn

A host that fails rests for 30 s; then it is tried in its turn, and rests twice as long each time
it is tried, up to 15 minutes, until a success.  When all hosts rest, all are taken for healthy.

Rule 1: no I/O, and clock and chance are given: a test replays any run.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence

REST_S = 30.0
REST_MAX_S = 900.0
EPSILON = 0.3
EPSILON_DECAY = 0.9
EPSILON_MIN = 0.01
BUCKET_COUNT = 120
BUCKET_S = 300.0 / BUCKET_COUNT

Clock = Callable[[], float]


class Host:
    """One host, and what is known of it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.dead = False
        self.rest_s = 0.0
        self.due_s = 0.0
        self.counts = [0] * BUCKET_COUNT
        self.totals_ms = [0.0] * BUCKET_COUNT

    def usable(self, now_s: float) -> bool:
        return not self.dead or now_s > self.due_s

    def taken(self, now_s: float) -> None:
        """A dead host that is tried rests longer, unless the try succeeds."""
        if self.dead:
            self.rest_s = min(self.rest_s * 2, REST_MAX_S)
            self.due_s = now_s + self.rest_s

    def fail(self, now_s: float) -> None:
        if not self.dead:
            self.dead = True
            self.rest_s = REST_S
            self.due_s = now_s + REST_S

    def average_ms(self, newest: int) -> float:
        """Newer buckets weigh more; an empty one repeats the one before.  0: nothing is known."""
        total = weights = last_ms = 0.0
        for age in range(1, BUCKET_COUNT + 1):
            bucket = (newest + age) % BUCKET_COUNT
            if self.counts[bucket]:
                last_ms = self.totals_ms[bucket] / self.counts[bucket]
            if last_ms:
                weight = age / BUCKET_COUNT
                total += last_ms * weight
                weights += weight
        return total / weights if weights else 0.0


class RoundRobin:
    """Counts, and knows nothing else."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = list(names)
        self._turn = -1

    def take(self) -> str:
        self._turn = (self._turn + 1) % len(self._names)
        return self._names[self._turn]

    def tell(self, name: str, elapsed_s: float, ok: bool) -> None:
        """What became of a host that was taken."""


class HostPool:
    """Round robin over those that did not fail lately."""

    def __init__(self, names: Sequence[str], clock: Clock = time.monotonic) -> None:
        self.hosts = [Host(name) for name in names]
        self._by_name = {host.name: host for host in self.hosts}
        self._clock = clock
        self._turn = 0

    def take(self) -> str:
        now_s = self._clock()
        for _ in self.hosts:
            host = self.hosts[self._turn]
            self._turn = (self._turn + 1) % len(self.hosts)
            if host.usable(now_s):
                host.taken(now_s)
                return host.name
        for host in self.hosts:
            host.dead = False
        self._turn = 1 % len(self.hosts)
        return self.hosts[0].name

    def tell(self, name: str, elapsed_s: float, ok: bool) -> None:
        host = self._by_name[name]
        if ok:
            host.dead = False
        else:
            host.fail(self._clock())


class EpsilonGreedy(HostPool):
    """Chooses by speed; explores less and less."""

    def __init__(
        self,
        names: Sequence[str],
        clock: Clock = time.monotonic,
        choose: random.Random | None = None,
    ) -> None:
        super().__init__(names, clock)
        self.epsilon = EPSILON
        self._choose = choose or random.Random()
        self._bucket = 0
        self._bucket_end_s = clock() + BUCKET_S

    def take(self) -> str:
        self._advance()
        if self._choose.random() < self.epsilon:
            self.epsilon = max(EPSILON_MIN, self.epsilon * EPSILON_DECAY)
            return super().take()
        now_s = self._clock()
        hosts, weights = [], []
        for host in self.hosts:
            average_ms = host.average_ms(self._bucket) if host.usable(now_s) else 0.0
            if average_ms:
                hosts.append(host)
                weights.append(1.0 / average_ms)
        if not hosts:
            return super().take()
        host = self._choose.choices(hosts, weights)[0]
        host.taken(now_s)
        return host.name

    def tell(self, name: str, elapsed_s: float, ok: bool) -> None:
        super().tell(name, elapsed_s, ok)
        self._advance()
        if ok:
            host = self._by_name[name]
            host.counts[self._bucket] += 1
            host.totals_ms[self._bucket] += max(elapsed_s * 1000.0, 0.001)

    def _advance(self) -> None:
        """Begin the buckets that time has reached."""
        now_s = self._clock()
        behind = int((now_s - self._bucket_end_s) / BUCKET_S) + 1
        if now_s < self._bucket_end_s:
            return
        for _ in range(min(behind, BUCKET_COUNT)):
            self._bucket = (self._bucket + 1) % BUCKET_COUNT
            for host in self.hosts:
                host.counts[self._bucket] = 0
                host.totals_ms[self._bucket] = 0.0
        self._bucket_end_s += behind * BUCKET_S


Pool = RoundRobin | HostPool


def make_pool(mode: str, names: Sequence[str]) -> Pool:
    """The pool of a ``--mode``; any unknown one is round robin."""
    if mode == "hostpool":
        return HostPool(names)
    return EpsilonGreedy(names) if mode == "epsilon-greedy" else RoundRobin(names)
