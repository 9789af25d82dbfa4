"""pynsq, a client from PyPI, against the daemon."""

from __future__ import annotations

import sys

from tests.conformance.scenarios import DeadTopicScenarios, Driven
from tests.support.daemon import Nsqd


class TestPynsq(DeadTopicScenarios):
    @classmethod
    def start(cls, nsqd: Nsqd) -> Driven:
        driver = "tests.conformance.clients.pynsq_driver"
        return Driven([sys.executable, "-m", driver, str(nsqd.tcp_port)])
