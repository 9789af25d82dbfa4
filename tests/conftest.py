"""Fixtures that every kind of test may use.

Hypothesis tries the same examples every time, so that a change is judged by what it changes;
``--hypothesis-profile=search`` has it look for new ones (`make test-slow`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.daemon import Nsqd

settings.register_profile("search")
settings.register_profile("steady", derandomize=True)
settings.load_profile("steady")


@pytest.fixture
def nsqd(tmp_path: Path) -> Iterator[Nsqd]:
    """A running nsqd with default options and an empty data path."""
    with Nsqd(tmp_path / "nsqd") as daemon:
        yield daemon
