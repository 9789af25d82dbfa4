"""Runs tests that mostly wait concurrently.

    together = ParallelTests()

    @together.test
    def test_a_timeout_brings_a_message_back(nsqd: Nsqd) -> None: ...

The first such test of a module starts all that were collected, each in a thread, against the same
daemon; every test then reports its own outcome.  They must not share topics.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from tests.support.daemon import Nsqd

TEST_SECONDS_MAX = 60.0

Test = Callable[[Nsqd], None]


class ParallelTests:
    """The tests of one module that run concurrently."""

    def __init__(self) -> None:
        self._tests: dict[str, Test] = {}
        self._outcomes: dict[str, Future[None]] = {}

    def test(self, test: Test) -> Callable[[Nsqd, pytest.FixtureRequest], None]:
        name = test.__name__
        self._tests[name] = test

        @functools.wraps(test)
        def wait(nsqd: Nsqd, request: pytest.FixtureRequest) -> None:
            if not self._outcomes:
                self._start(nsqd, request)
            self._outcomes[name].result(TEST_SECONDS_MAX)

        # pytest requests the fixtures that the signature names, and wraps() would hide ours.
        del wait.__wrapped__  # type: ignore[attr-defined]
        return wait

    def _start(self, nsqd: Nsqd, request: pytest.FixtureRequest) -> None:
        wanted = {
            item.name
            for item in request.session.items
            if isinstance(item, pytest.Function) and item.module is request.module
        }
        names = [name for name in self._tests if name in wanted]
        pool = ThreadPoolExecutor(len(names), thread_name_prefix="together")
        self._outcomes = {name: pool.submit(self._tests[name], nsqd) for name in names}
        pool.shutdown(wait=False)
