"""One nsqd for all tests of a module of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.daemon import Nsqd


@pytest.fixture(scope="module")
def nsqd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    """Tests use topics of their own."""
    with Nsqd(tmp_path_factory.mktemp("nsqd")) as daemon:
        yield daemon
