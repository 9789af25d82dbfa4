"""Selects one of several hosts.

    round-robin      one after the other, whether or not they fail
    hostpool         one after the other, without those that failed recently
    epsilon-greedy   mostly the fastest, sometimes the next in turn, to measure it

A host that fails is skipped for 30 s and then retried in turn; the delay doubles with each retry,
up to 15 minutes, until one succeeds.  If all hosts are skipped, all count as healthy.

Rule 1: no I/O, and clock and random numbers are passed in: a test can replay any run.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence

RETRY_S = 30.0
RETRY_MAX_S = 900.0
EPSILON = 0.3
EPSILON_DECAY = 0.9
EPSILON_MIN = 0.01
BUCKET_COUNT = 120
BUCKET_S = 300.0 / BUCKET_COUNT

Clock = Callable[[], float]


class Host:
    """One host, its state and its response times."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.dead = False
        self.retry_s = 0.0
        self.due_s = 0.0
        self.counts = [0] * BUCKET_COUNT
        self.totals_ms = [0.0] * BUCKET_COUNT

    def usable(self, now_s: float) -> bool:
        return not self.dead or now_s > self.due_s

    def taken(self, now_s: float) -> None:
        """Double the delay of a dead host that is retried."""
        if self.dead:
            self.retry_s = min(self.retry_s * 2, RETRY_MAX_S)
            self.due_s = now_s + self.retry_s

    def fail(self, now_s: float) -> None:
        if not self.dead:
            self.dead = True
            self.retry_s = RETRY_S
            self.due_s = now_s + RETRY_S

    def average_ms(self, newest: int) -> float:
        """The average, newer buckets weigh more; an empty one repeats the last.  0: unknown."""
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
    """One after the other, without regard to failures."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = list(names)
        self._turn = -1

    def take(self) -> str:
        self._turn = (self._turn + 1) % len(self._names)
        return self._names[self._turn]

    def report(self, name: str, elapsed_s: float, ok: bool) -> None:
        """Report the result of a request to a host that ``take`` returned."""


class HostPool:
    """Round robin over the hosts that did not fail recently."""

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

    def report(self, name: str, elapsed_s: float, ok: bool) -> None:
        host = self._by_name[name]
        if ok:
            host.dead = False
        else:
            host.fail(self._clock())


class EpsilonGreedy(HostPool):
    """Chooses by response time; explores less and less."""

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

    def report(self, name: str, elapsed_s: float, ok: bool) -> None:
        super().report(name, elapsed_s, ok)
        self._advance()
        if ok:
            host = self._by_name[name]
            host.counts[self._bucket] += 1
            host.totals_ms[self._bucket] += max(elapsed_s * 1000.0, 0.001)

    def _advance(self) -> None:
        """Start the buckets up to the current time."""
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
    """The pool for a ``--mode``; an unknown mode is round robin."""
    if mode == "hostpool":
        return HostPool(names)
    return EpsilonGreedy(names) if mode == "epsilon-greedy" else RoundRobin(names)
