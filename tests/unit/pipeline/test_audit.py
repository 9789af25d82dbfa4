from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest

from penstock.errors import NodeError
from penstock.pipeline.audit import Finding, absent, as_json, is_proven, judge_gaps, table
from penstock.spark.cluster import Log


@dataclass
class FakeCluster:
    """A broker with these messages; of those below ``whole_from`` it has removed some."""

    indexes: tuple[int, ...]
    whole_from: int = 0
    nodes: dict[str, Any] = field(default_factory=lambda: {"n": object()})
    topic: str = "t"
    away: bool = False

    def log_of(self, node: str, topic: str) -> Log | None:
        if self.away:
            raise NodeError("nsqd h:1 does not answer")
        if topic != self.topic:
            return None
        end = self.indexes[-1] + 1
        return Log(node, "i", self.indexes[0], self.whole_from, end, end, end, ())

    def count(self, node: str, topic: str, start: int, end: int) -> int:
        return sum(start <= index < end for index in self.indexes)


def judge(archived: list[int], cluster: FakeCluster, *, from_first: bool = True) -> Finding:
    """What is found, as ``find`` goes about it."""
    finding = Finding("t", "n", archived[0], archived[-1], len(set(archived)))
    if not is_proven(finding, cluster, from_first):  # type: ignore[arg-type]
        gaps = [(a + 1, b) for a, b in pairwise(archived) if b > a + 1]
        judge_gaps(finding, gaps, cluster)  # type: ignore[arg-type]
    return finding


def test_all_is_there_gaps_of_the_broker_included() -> None:
    found = judge([1, 2, 50, 51], FakeCluster((1, 2, 50, 51, 52, 60)))
    assert (found.verdict, found.counted, found.not_read) == ("whole", 4, 2)


def test_what_is_missing_is_found_in_its_gap() -> None:
    found = judge([1, 2, 6, 50], FakeCluster((1, 2, 3, 4, 5, 6, 50)))
    assert (found.verdict, found.missing) == ("wrong", [(3, 6, 3)])
    assert "missing: 3 in [3, 6)" in table([found])


def test_what_the_broker_has_before_the_first_is_missing_too() -> None:
    cluster = FakeCluster((1, 2, 3, 4))
    assert judge([3, 4], cluster).missing == [(1, 3, 2)]
    assert judge([3, 4], cluster, from_first=False).verdict == "whole"


def test_what_the_broker_has_removed_is_unproven() -> None:
    found = judge([1, 2, 9, 12], FakeCluster((9, 10, 11, 12), whole_from=9))
    assert found.missing == [(10, 12, 2)]
    assert found.unproven == ["the broker has removed messages below 9"]
    rest = judge([1, 2, 9, 10], FakeCluster((9, 10), whole_from=9))
    assert rest.verdict == "unproven"
    assert "unproven: the broker has removed" in table([rest])


@pytest.mark.parametrize(
    ("cluster", "said"),
    [
        (FakeCluster((1,), nodes={}), "the node does not answer"),
        (FakeCluster((1,), topic="other"), "the topic is not there any more"),
        (FakeCluster((1,), away=True), "nsqd h:1 does not answer"),
    ],
)
def test_without_the_broker_nothing_is_proven(cluster: FakeCluster, said: str) -> None:
    found = judge([1, 2], cluster)
    assert (found.verdict, found.unproven) == ("unproven", [said])


def test_a_topic_that_was_named_must_be_there() -> None:
    cluster: Any = FakeCluster((1, 2))
    [finding] = absent([], ["t", "other", "x*"], cluster)
    assert not is_proven(finding, cluster, from_first=True) or finding.missing == [(1, 3, 2)]
    assert finding.verdict == "wrong"


def test_repeats_are_wrong() -> None:
    finding = Finding("t", "n", 1, 2, 2, repeats=[(1, 3)])
    assert finding.verdict == "wrong"
    assert "3 times: index 1" in table([finding])
    assert as_json(finding)["verdict"] == "wrong"
    assert table([]) == "the archive has no messages of these topics"
