from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import AlreadyRunningError, PipelineError
from penstock.pipeline.audit_acceptance import accept, locked
from penstock.pipeline.audit_files import check_files
from penstock.pipeline.audit_findings import (
    COUNTED,
    EARLIER,
    GAP,
    MISSING,
    NEVER_READ,
    OUTSIDE,
    PASSED,
    REPEAT,
    ROWS,
    Files,
    Report,
    Topic,
    Topics,
)
from penstock.pipeline.audit_ledgers import open_ledgers
from penstock.pipeline.audit_ranges import judge_ranges
from penstock.pipeline.audit_rows import (
    groups_of,
    groups_without_ledger,
    judge_groups,
    judge_outside,
    judge_repeats,
    judge_without_ledger,
)
from penstock.pipeline.audit_text import sentence, text
from penstock.pipeline.coverage import Coverage, Span
from penstock.pipeline.ledger_records import LOSS, Accepted
from penstock.spark.offsets import INDEX_MAX
from tests.unit.pipeline.audited import LOG, NODE, TOPIC, FakeCluster, Table, span


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path / "table")


def judge(
    table: Table, cluster: FakeCluster, patterns: str = "*", *, from_first: bool = True
) -> list[Topic]:
    """What ledger and brokers say."""
    topics = Topics()
    ledgers = open_ledgers(table.folder)
    judge_ranges(ledgers, cluster.brokers(), [patterns], topics, from_first=from_first)
    return topics.all()


def told(topics: list[Topic]) -> list[tuple[Any, ...]]:
    return [
        (fault.kind, fault.start, fault.end, fault.count)
        for topic in topics
        for fault in topic.faults
    ]


def with_rows(table: Table, rows: dict[int, int], cluster: FakeCluster) -> list[Topic]:
    """Also what rows say: how many there are by index."""
    topics, brokers = Topics(), cluster.brokers()
    ledgers = open_ledgers(table.folder)
    judge_ranges(ledgers, brokers, ["*"], topics, from_first=True)
    groups = groups_of(ledgers, ["*"])
    for group in groups:
        inside = [rows[index] for index in rows if group.start <= index < group.end]
        group.rows, group.different = sum(inside), len(inside)
        indexes = [index for index in rows if group.start <= index < group.end]
        group.first, group.last = min(indexes, default=None), max(indexes, default=None)
    outside = [index for index in rows if not any(g.start <= index < g.end for g in groups)]
    found = [{"topic": TOPIC, "node": NODE, "first": n, "last": n, "rows": 1} for n in outside]
    later = Coverage(span for opened in ledgers for span in opened.coverage)
    judge_outside(found, later, topics, set(), began=False)
    gaps = [(a + 1, b) for a, b in pairwise(sorted(rows)) if b > a + 1]
    judge_groups(groups, brokers, topics, lambda topic: {(TOPIC, NODE): gaps})
    twice = [(TOPIC, NODE, index, times) for index, times in rows.items() if times > 1]
    judge_repeats(twice, groups, topics, set())
    return topics.all()


def once(*indexes: int) -> dict[int, int]:
    return dict.fromkeys(indexes, 1)


# Ledger and brokers


def test_a_table_is_whole_whether_or_not_the_brokers_have_the_messages(table: Table) -> None:
    table.batch(0, 10)
    table.batch(10, 20)
    for cluster in (
        FakeCluster(tuple(range(20)), low=20),
        FakeCluster(whole_from=20, low=20),
        FakeCluster(tuple(range(15, 20)), whole_from=15, low=20),
    ):
        [topic] = judge(table, cluster)
        assert (topic.verdict, topic.count, topic.not_read) == ("whole", 20, 0)


def test_what_comes_after_the_end_is_not_read_yet(table: Table) -> None:
    table.batch(0, 10)
    [topic] = judge(table, FakeCluster(tuple(range(15)), low=5))
    assert (topic.verdict, topic.not_read) == ("whole", 5)


def test_a_gap_is_wrong_unless_the_broker_has_nothing_in_it(table: Table) -> None:
    table.batch(0, 10)
    table.batch(20, 30)
    assert told(judge(table, FakeCluster(whole_from=30, low=30))) == [(GAP, 10, 20, None)]
    here = (*range(10), 12, 13, *range(20, 30))
    assert told(judge(table, FakeCluster(here, low=30))) == [(GAP, 10, 20, 2)]
    own = (*range(10), *range(20, 30))
    assert told(judge(table, FakeCluster(own, low=30))) == []


def test_an_accepted_loss_explains_a_gap(table: Table) -> None:
    table.batch(0, 10)
    table.batch(20, 30)
    loss = Accepted("x", 1, span(10, 20))
    table.ledger.commit(table.ledger.record(LOSS, losses=(loss,)))
    assert told(judge(table, FakeCluster(whole_from=30, low=30))) == []


def test_what_the_channel_passed_must_be_in_the_ledger(table: Table) -> None:
    table.batch(0, 10)
    cluster = FakeCluster(tuple(range(20)), low=15)
    assert told(judge(table, cluster)) == [(PASSED, 10, 15, 5)]
    gone = FakeCluster(whole_from=15, low=15)
    assert told(judge(table, gone)) == [(PASSED, 10, 15, None)]
    only_a_gap = FakeCluster(tuple(range(10)), low=15)
    assert told(judge(table, only_a_gap)) == []


def test_what_the_broker_has_before_the_first_is_missing_too(table: Table) -> None:
    table.batch(5, 10)
    cluster = FakeCluster(tuple(range(10)), low=10)
    assert told(judge(table, cluster)) == [(EARLIER, 0, 5, 5)]
    assert judge(table, cluster, from_first=False)[0].verdict == "whole"


def test_the_broker_counts_more_than_the_ledger(table: Table) -> None:
    table.ledger.commit(
        table.ledger.record("batch", query="q", batch=0, spans=(span(0, 10, count=8),))
    )
    assert told(judge(table, FakeCluster(tuple(range(10)), low=10))) == [(COUNTED, 0, 10, 2)]
    [topic] = judge(table, FakeCluster(tuple(range(7)), low=10))
    assert topic.verdict == "whole"
    assert topic.notes == ["the broker counts 7 messages, the ledger 8"]


@pytest.mark.parametrize(
    ("cluster", "said"),
    [
        (FakeCluster(nodes={}), "the node does not respond"),
        (FakeCluster(away=True), "nsqd h:1 does not answer"),
    ],
)
def test_without_the_node_it_is_not_provable(table: Table, cluster: FakeCluster, said: str) -> None:
    table.batch(0, 10)
    [topic] = judge(table, cluster)
    assert (topic.verdict, topic.unproven) == ("not provable", [said])


def test_a_node_that_was_dropped_needs_not_answer(table: Table) -> None:
    table.batch(0, 10)
    dropped = Span(LOG, 10, INDEX_MAX)
    table.ledger.commit(table.ledger.record(LOSS, spans=(dropped,)))
    assert judge(table, FakeCluster(nodes={}))[0].verdict == "whole"


def test_a_topic_that_was_deleted_is_proven_by_the_ledger(table: Table) -> None:
    table.batch(0, 10)
    [topic] = judge(table, FakeCluster(topic="other"))
    assert (topic.verdict, topic.notes) == ("whole", ["the topic was deleted"])
    again = FakeCluster((1, 2), instance="f" * 16, low=0)
    assert judge(table, again)[0].notes == ["the topic was deleted and created again"]


def test_a_channel_that_is_gone_leaves_a_doubt_only_if_messages_are(table: Table) -> None:
    table.batch(0, 10)
    assert judge(table, FakeCluster((8, 9, 10), whole_from=8))[0].verdict == "whole"
    [topic] = judge(table, FakeCluster((12,), whole_from=12))
    assert topic.verdict == "not provable" and "no longer exists" in topic.unproven[0]


# Topics without a row


def test_a_topic_that_the_channel_passed_and_no_table_has(table: Table) -> None:
    cluster = FakeCluster(tuple(range(10)), low=6)
    assert told(judge(table, cluster)) == [(PASSED, 0, 6, 6)]
    assert told(judge(table, FakeCluster(tuple(range(10)), low=0))) == []
    assert told(judge(table, FakeCluster(tuple(range(10))))) == []
    # What was removed is not counted any more, but our reader has committed.
    assert told(judge(table, FakeCluster((), whole_from=6, low=6))) == [(PASSED, 6, 6, None)]
    other = FakeCluster((), whole_from=6, low=6, identity="")
    assert told(judge(table, other)) == []


def test_a_topic_that_was_named_must_be_there(table: Table) -> None:
    cluster = FakeCluster((1, 2))
    assert told(judge(table, cluster, TOPIC)) == [(NEVER_READ, 0, 3, 2)]
    assert judge(table, cluster, "x*") == []
    assert judge(table, FakeCluster((1, 2), low=1), TOPIC) == []


# Rows


def test_rows_are_counted_in_each_range(table: Table) -> None:
    table.batch(0, 10)
    gone = FakeCluster(whole_from=10, low=10)
    assert with_rows(table, once(*range(10)), gone)[0].verdict == "whole"
    [topic] = with_rows(table, once(*range(3), *range(6, 10)), gone)
    [fault] = topic.faults
    assert (fault.kind, fault.count, fault.detail) == (ROWS, 3, "no row in [3, 6)")
    [topic] = with_rows(table, once(2, 3, 6, 7), gone)
    assert topic.faults[0].detail == "no row in [0, 2), [4, 6), [8, 10)"
    assert told(with_rows(table, {}, gone)) == [(ROWS, 0, 10, 10)]


def test_repeats_and_rows_outside_are_wrong(table: Table) -> None:
    table.batch(0, 10)
    gone = FakeCluster(whole_from=10, low=10)
    topics = with_rows(table, {**once(*range(10)), 4: 3, 77: 1}, gone)
    assert sorted(told(topics)) == sorted([(REPEAT, 4, 5, 3), (OUTSIDE, 77, 78, 1)])


def test_rows_of_a_table_with_sql_are_judged_by_their_place(tmp_path: Path) -> None:
    table = Table(tmp_path / "table", plain=False)
    table.batch(0, 10)
    gone = FakeCluster(whole_from=10, low=10)
    [topic] = with_rows(table, {1: 2, 5: 1}, gone)
    assert topic.verdict == "whole" and "several rows" in topic.notes[0]
    assert told(with_rows(table, {1: 2, 11: 1}, gone)) == [(OUTSIDE, 11, 12, 1)]


def test_two_pipelines_may_write_one_message(table: Table) -> None:
    table.batch(0, 10)
    Table(table.path, "other").batch(5, 15)
    [group] = groups_of(open_ledgers(table.folder), ["*"])
    assert (group.start, group.end, group.count, group.depth) == (0, 15, 20, 2)


# Before the ledger


def test_what_is_from_before_the_ledger_is_proven_by_brokers_or_not_at_all(table: Table) -> None:
    table.carry(0, 10)
    table.batch(10, 20)
    rows = once(*range(20))
    gone = FakeCluster(whole_from=20, low=20)
    [topic] = with_rows(table, rows, gone)
    assert topic.verdict == "not provable" and "[0, 10)" in topic.unproven[0]
    here = FakeCluster(tuple(range(20)), low=20)
    assert with_rows(table, rows, here)[0].verdict == "whole"
    # What the broker still counts and the table lacks is wrong.
    lacking = once(*range(3), *range(5, 20))
    assert told(with_rows(table, lacking, here)) == [(ROWS, 3, 5, 2)]


def test_a_gap_from_before_the_ledger_is_wrong_only_if_the_broker_counts_it(table: Table) -> None:
    table.carry(0, 10)
    table.carry(20, 30)
    [topic] = judge(table, FakeCluster(whole_from=30, low=30))
    assert topic.verdict == "not provable" and "[10, 20)" in topic.unproven[-1]
    here = FakeCluster((*range(10), 12, *range(20, 30)), low=30)
    assert told(judge(table, here)) == [(GAP, 10, 20, 1)]


def test_rows_in_no_range_of_a_table_that_is_older_than_its_ledger_are_a_doubt(
    table: Table,
) -> None:
    topics = Topics()
    row = {"topic": TOPIC, "node": NODE, "first": 3, "last": 7, "rows": 5}
    judge_outside([row], Coverage(), topics, set(), began=True)
    [topic] = topics.all()
    assert (topic.verdict, topic.unproven) == ("not provable", ["5 rows in [3, 8) are in no range"])


def old_table(indexes: list[int], cluster: FakeCluster, *, from_first: bool = True) -> Topic:
    """A table without a ledger."""
    topics, brokers = Topics(), cluster.brokers()
    row = {"topic": TOPIC, "node": NODE, "first": indexes[0], "last": indexes[-1]}
    count = {"rows": len(indexes), "different": len(set(indexes))}
    groups = groups_without_ledger([{**row, **count}], brokers)
    judge_without_ledger(groups, brokers, topics, from_first=from_first)
    gaps = [(a + 1, b) for a, b in pairwise(indexes) if b > a + 1]
    judge_groups(groups, brokers, topics, lambda topic: {(TOPIC, NODE): gaps})
    [topic] = topics.all()
    return topic


def test_without_a_ledger_brokers_prove_it_gaps_of_their_own_included() -> None:
    topic = old_table([1, 2, 50, 51], FakeCluster((1, 2, 50, 51, 52, 60)))
    assert (topic.verdict, topic.count, topic.not_read) == ("whole", 4, 2)
    topic = old_table([1, 2, 6, 50], FakeCluster((1, 2, 3, 4, 5, 6, 50)))
    assert told([topic]) == [(ROWS, 3, 6, 3)]
    cluster = FakeCluster((1, 2, 3, 4))
    assert told([old_table([3, 4], cluster)]) == [(EARLIER, 1, 3, 2)]
    assert old_table([3, 4], cluster, from_first=False).verdict == "whole"


def test_without_a_ledger_what_the_broker_has_removed_is_not_provable() -> None:
    topic = old_table([1, 2, 9, 12], FakeCluster((9, 10, 11, 12), whole_from=9))
    assert told([topic]) == [(ROWS, 10, 12, 2)]
    rest = old_table([1, 2, 9, 10], FakeCluster((9, 10), whole_from=9))
    assert rest.verdict == "not provable"
    assert "the broker has removed messages below 9" in rest.unproven
    away = old_table([1, 2], FakeCluster((1, 2), nodes={}))
    assert away.unproven[0] == "the node does not respond"


# Accepting


def report_of(table: Table, cluster: FakeCluster, rows: dict[int, int] | None = None) -> Report:
    topics = judge(table, cluster) if rows is None else with_rows(table, rows, cluster)
    ledgers = open_ledgers(table.folder)
    files = check_files(table.folder, ledgers)
    losses = [loss for opened in ledgers for loss in opened.ledger.head.losses]
    return Report("/t", topics, files, losses, [{"pipeline": each.pipeline} for each in ledgers])


def test_accepting_a_gap_works_once(table: Table) -> None:
    table.batch(0, 10)
    table.batch(20, 30)
    cluster = FakeCluster(whole_from=30, low=30)
    report = report_of(table, cluster)
    [fault] = report.faults
    assert f"[{fault.name}]" in text(report)
    accept(report, open_ledgers(table.folder), [fault.name])
    after = report_of(table, cluster)
    assert after.verdict == "whole"
    assert [loss.span for loss in after.losses] == [Span(LOG, 10, 20)]
    assert "ACCEPTED LOSSES  1" in text(after) and "indexes 10 to 19" in text(after)
    with pytest.raises(PipelineError, match="already accepted; a name works once"):
        accept(after, open_ledgers(table.folder), [fault.name])
    with pytest.raises(PipelineError, match="no fault has this name; found: nothing"):
        accept(after, open_ledgers(table.folder), ["nonsense"])


def test_accepting_all_of_it_takes_files_and_their_rows(table: Table) -> None:
    table.batch(0, 10)
    gone, changed = table.batch(10, 20)[0], table.batch(20, 30)[0]
    (table.path / gone.path).unlink()
    table.write_file(changed.path, range(20, 25))
    table.write_file("topic=t/more.parquet", range(25, 30))
    cluster = FakeCluster(whole_from=30, low=30)
    rows = once(*range(10), *range(20, 30))
    report = report_of(table, cluster, rows)
    assert len(report.files.faults) == 3
    wrong = "10 messages are missing, 3 files are missing, changed or unknown"
    assert sentence(report) == f"/t: {wrong}"
    accept(report, open_ledgers(table.folder), [report.name])
    after = report_of(table, cluster, rows)
    assert (after.verdict, after.files.faults) == ("whole", [])
    # The next loss is another one.
    more = report_of(table, cluster, once(*range(5), *range(20, 30)))
    assert told(more.topics) == [(ROWS, 0, 30, 5)]
    with pytest.raises(PipelineError, match=f"accept={report.name}: no fault"):
        accept(more, open_ledgers(table.folder), [report.name])


def test_nothing_is_accepted_beside_a_pipeline_that_runs(table: Table) -> None:
    ledgers = open_ledgers(table.folder)
    with locked(table.folder, ledgers), pytest.raises(AlreadyRunningError):
        locked(table.folder, ledgers).__enter__()
    with locked(table.folder, ledgers):
        pass
    table.batch(0, 10)
    table.ledger.seal({"record": table.ledger.record("merge").as_json()})
    (table.path / table.files[0]).unlink()
    report = report_of(table, FakeCluster(whole_from=10, low=10))
    with pytest.raises(PipelineError, match="start the pipeline archive once"):
        accept(report, open_ledgers(table.folder), [report.name])


def test_the_report_is_readable_and_complete(table: Table) -> None:
    table.batch(0, 10)
    (table.path / table.files[0]).unlink()
    report = report_of(table, FakeCluster(nodes={}))
    shown = text(report)
    assert f"{table.files[0]} {MISSING}: 10 rows" in shown
    assert "not provable: the node does not respond" in shown
    as_json = report.as_json()
    assert as_json["verdict"] == "wrong"
    assert as_json["topics"][0]["not_provable"] == ["the node does not respond"]
    assert as_json["files"]["faults"][0]["path"] == table.files[0]
    many = Topic(TOPIC, NODE, doubts=[str(n) for n in range(30)])
    assert "and 10 more" in text(Report("/t", [many], Files(), []))
    assert "no messages of these topics" in text(Report("/t", [], Files(), []))
    unproven = Report("/t", [Topic(TOPIC, NODE, doubts=["why"])], Files(), [])
    assert sentence(unproven) == f"/t: not provable: topic {TOPIC} on node {NODE}: why"
