"""Who a pipeline is to the brokers (R45)."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import PipelineError
from penstock.pipeline.folders import LocalFolder
from penstock.pipeline.identity import NAME, PipelineIdentity, identity_of


def test_an_identity_is_made_once_and_kept(tmp_path: Path) -> None:
    folder = LocalFolder(str(tmp_path))
    first = identity_of(folder)
    assert first.new and len(first.text) == 32
    assert identity_of(folder) == PipelineIdentity(first.text)
    assert identity_of(LocalFolder(str(tmp_path / "other"))).text != first.text


def test_what_the_tables_say_comes_first(tmp_path: Path) -> None:
    folder = LocalFolder(str(tmp_path))
    identity_of(folder)
    assert identity_of(folder, ("", "a" * 32, "b" * 32)) == PipelineIdentity("a" * 32)
    assert identity_of(folder).text == "a" * 32


@pytest.mark.parametrize("data", [b"", b"{}", b'{"identity": 5}', b'{"identity": "x"}', b"[]"])
def test_a_damaged_identity_is_told_not_replaced(tmp_path: Path, data: bytes) -> None:
    (tmp_path / NAME).write_bytes(data)
    with pytest.raises(PipelineError, match=r"identity.json does not contain an identity; restore"):
        identity_of(LocalFolder(str(tmp_path)))
    assert (tmp_path / NAME).read_bytes() == data
