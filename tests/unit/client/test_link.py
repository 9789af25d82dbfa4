"""How long a client waits: before it connects again, and before a message comes again."""

from __future__ import annotations

import pytest

from penstock.client.config import Config
from penstock.client.link import reconnect_delay_s
from penstock.client.message import requeue_delay_s


def test_reconnecting_slows_down_with_a_random_half() -> None:
    config = Config(reconnect_delay=1.0, max_reconnect_delay=8.0)
    assert [reconnect_delay_s(config, n, 0.0) for n in range(5)] == [0.5, 1.0, 2.0, 4.0, 4.0]
    assert reconnect_delay_s(config, 3, 0.999) == pytest.approx(8.0, abs=0.01)
    assert reconnect_delay_s(config, 10**6, 0.0) == 4.0


def test_the_delay_of_a_requeued_message_grows_with_its_attempts() -> None:
    assert [requeue_delay_s(n, 90.0, 900.0) for n in (1, 2, 3, 10, 50)] == [90, 180, 270, 900, 900]
