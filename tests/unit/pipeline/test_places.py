"""Places of a pipeline: equal ones and nested ones are found however they are written."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.errors import PipelineError
from penstock.pipeline.consistency import check
from penstock.pipeline.places import real_path
from penstock.pipeline.spec import Pipeline
from penstock.pipeline.spec_file import from_table, read_pipeline

SOURCE = {"topics": "t", "nsqd_http_addresses": "127.0.0.1:4151"}


def declared(folder: Path, sinks: list[dict[str, Any]], **tables: Any) -> Pipeline:
    return check(
        from_table({"name": "p", "source": dict(SOURCE), "sink": sinks, **tables}, (), folder)
    )


def parquet(path: str) -> dict[str, Any]:
    return {"type": "parquet", "path": path}


def plot(path: str) -> dict[str, Any]:
    return {"type": "plot", "path": path, "values": "n"}


def spellings(folder: Path, name: str) -> st.SearchStrategy[str]:
    """Ways to write a place in ``folder``, which has a link ``link`` to itself."""
    steps = st.lists(
        st.sampled_from(["./", "x/../", "link/", "./link/./", "link/y/../"]), max_size=3
    )
    start = st.sampled_from(["", f"{folder}/", f"file:{folder}/", f"file://{folder}/"])
    start |= st.sampled_from(
        [f"FILE://localhost{folder}//", f"{folder.parent}/../{folder.parent.name}/{folder.name}/"]
    )
    return st.builds(
        lambda first, rest, end: f"{first}{''.join(rest)}{name}{end}",
        start,
        steps,
        st.sampled_from(["", "/", "//", "/.", "/x/.."]),
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("places").resolve()
    (folder / "link").symlink_to(folder)
    (folder / "other").symlink_to(folder / "table")  # to what is not there yet
    return folder


@given(data=st.data())
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_two_spellings_of_one_place_are_refused(folder: Path, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["table", "other"]))
    one, other = data.draw(spellings(folder, "table")), data.draw(spellings(folder, name))
    inner = data.draw(st.sampled_from(["", "/a", "/_penstock", "/_penstock/invalid", "/_x/y"]))
    kind = data.draw(st.sampled_from(["sink", "invalid", "plot", "checkpoint"]))
    inside = other.rstrip("/") + inner
    sinks, tables = [parquet(one)], {}
    match kind:
        case "sink":
            sinks.append({"type": "delta", "path": inside})
        case "plot":
            sinks.append(plot(inside))
        case "invalid":
            tables["invalid"] = {"path": inside}
        case "checkpoint":
            allowed = inner == "/_penstock/invalid"
            tables["checkpoint"] = inside + ("/../schema.json" if allowed else "")
    with pytest.raises(PipelineError, match=r"are the same path|is inside"):
        declared(folder, data.draw(st.permutations(sinks)), **tables)


@given(data=st.data())
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_places_side_by_side_are_taken(folder: Path, data: st.DataObject) -> None:
    names = ["table", "tables", "table.svg", "table-invalid", "c/p"]
    one, two, picture, invalid, checkpoint = [data.draw(spellings(folder, name)) for name in names]
    picture = picture.rstrip("/.x")  # a file
    if data.draw(st.booleans()):
        checkpoint = f"{one.rstrip('/')}/_penstock/checkpoint"
    sinks = [parquet(one), {"type": "delta", "path": two}, plot(picture)]
    pipeline = declared(folder, sinks, invalid={"path": invalid}, checkpoint=checkpoint)
    assert real_path(pipeline.resolve(one)) == str(folder / "table")
    assert pipeline.places()[:2] == [os.path.normpath(pipeline.resolve(p)) for p in (one, two)]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("hdfs://h/a", "HDFS://H//a/"),
        ("hdfs://h:8020/a/b/..", "hdfs://h:8020/a"),
        ("s3a://bucket/a", "s3a://bucket/a/b"),
        ("s3a://bucket", "s3a://bucket/b"),
    ],
)
def test_places_of_other_file_systems_are_compared_too(
    tmp_path: Path, one: str, other: str
) -> None:
    with pytest.raises(PipelineError, match=r"are the same path|is inside"):
        declared(tmp_path, [parquet(one), parquet(other)])
    assert declared(tmp_path, [parquet(one), parquet("hdfs://other/a")])
    assert declared(tmp_path, [parquet(one)], checkpoint=f"{one}/_penstock/checkpoint")


def test_what_is_refused_is_told_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(PipelineError) as caught:
        declared(tmp_path, [parquet("t")], checkpoint="t/_checkpoint")
    assert f"or in {'t'}/_penstock/checkpoint; stop the pipeline before you move it" in str(
        caught.value
    )
    with pytest.raises(PipelineError, match=r"\[sink\] path \(.*/c/t\) is inside the checkpoint"):
        declared(tmp_path, [parquet("c/t")], checkpoint="c")
    with pytest.raises(PipelineError, match=r"\[sink\] path and \[invalid\] path are the same"):
        declared(tmp_path, [parquet("t")], invalid={"path": "./t/"})
    with pytest.raises(PipelineError, match=r"the ledger of topics .* is inside|same path"):
        topic = {"type": "topic", "topic": "out"}
        declared(tmp_path, [parquet("c.ledger"), topic], checkpoint="c")
    with pytest.raises(PipelineError, match="the same path"):
        declared(tmp_path, [plot("a.svg"), plot("./a.svg")])
    with pytest.raises(PipelineError, match="its points"):
        declared(tmp_path, [plot("a.svg"), parquet("a.svg.json")])


@pytest.mark.parametrize("path", ["t/_penstock", "t/_penstock/ledger", "t/_penstock/ledger/p"])
def test_a_checkpoint_does_not_lie_in_what_the_table_keeps(tmp_path: Path, path: str) -> None:
    with pytest.raises(PipelineError, match="is inside"):
        declared(tmp_path, [parquet("t")], checkpoint=path)


def test_shipped_pipelines_keep_their_checkpoint_in_the_table(tmp_path: Path) -> None:
    for name in ("archive", "metrics"):
        pipeline = read_pipeline(name, [f"parameters.path=file://{tmp_path}/t"])
        assert pipeline.checkpoint_path == f"{tmp_path}/t/_penstock/checkpoint"
