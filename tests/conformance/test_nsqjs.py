"""nsqjs, a client from npm, against the daemon."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.conformance import nodejs
from tests.conformance.scenarios import DeadTopicScenarios, Driven
from tests.support.daemon import Nsqd


@pytest.fixture(scope="module", autouse=True)
def installed() -> Iterator[None]:
    nodejs.install()
    yield


class TestNsqjs(DeadTopicScenarios):
    @classmethod
    def start(cls, nsqd: Nsqd) -> Driven:
        return Driven(
            ["node", str(nodejs.SOURCE / "nsqjs_driver.js"), str(nsqd.tcp_port)],
            {**os.environ, "NODE_PATH": str(nodejs.FOLDER / "node_modules")},
        )
