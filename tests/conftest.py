"""Fixtures that every kind of test may use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.daemon import Nsqd


@pytest.fixture
def nsqd(tmp_path: Path) -> Iterator[Nsqd]:
    """A running nsqd with default options and an empty data path."""
    with Nsqd(tmp_path / "nsqd") as daemon:
        yield daemon
