"""Command lines of the tools: what is not a flag is refused, with what was probably meant."""

from __future__ import annotations

import pytest

from penstock.cli import (
    demo,
    nsq_stat,
    nsq_tail,
    nsq_to_file,
    nsq_to_http,
    nsq_to_nsq,
    nsqadmin,
    nsqd,
    nsqlookupd,
    spark_cluster,
    spark_pack,
    to_nsq,
    up,
)
from penstock.cli.flags import UsageError, take_word, take_words
from penstock.cli.main import main

TOOLS = (nsq_stat, nsq_tail, nsq_to_file, nsq_to_http, nsq_to_nsq, to_nsq)
DAEMONS = (nsqd, nsqlookupd, nsqadmin)


@pytest.mark.parametrize("tool", TOOLS, ids=lambda module: module.PROGRAM)
def test_a_topic_without_its_flag_is_refused_with_the_flag(tool: object) -> None:
    table = tool.flag_table()  # type: ignore[attr-defined]
    with pytest.raises(UsageError) as refused:
        table.parse(["--log-level=warn", "orders", "--channel=c"], {})
    assert str(refused.value) == 'unexpected argument "orders"; use --topic=orders'


def test_the_hint_is_left_out_where_it_would_be_wrong() -> None:
    """Tables without a topic, and one that has its only topic already."""
    for table in (up.flag_table(), demo.flag_table()):
        with pytest.raises(UsageError, match=r'^unexpected argument "orders"$'):
            table.parse(["orders"], {})
    with pytest.raises(UsageError, match=r'^unexpected argument "b"$'):
        to_nsq.flag_table().parse(["--topic=a", "b"], {})
    with pytest.raises(UsageError, match="use --topic=b"):
        nsq_tail.flag_table().parse(["--topic=a", "b"], {})


def test_a_switch_with_its_value_behind_it_is_told_apart() -> None:
    with pytest.raises(UsageError, match=r'^unexpected argument "true"; use --gzip=true$'):
        nsq_to_file.flag_table().parse(["--topic=a", "--gzip", "true", "--channel=c"], {})


@pytest.mark.parametrize("daemon", DAEMONS, ids=lambda module: module.__name__)
def test_a_daemon_starts_as_nsqs_does_and_warns(daemon: object) -> None:
    parsed = daemon.flag_table().parse(["-log-level=warn", "word", "-x"], {})  # type: ignore[attr-defined]
    assert parsed.options.log_level == "warn"
    (warning,) = parsed.warnings
    assert warning.startswith('unexpected argument "word"; ignoring it')
    assert warning.endswith(": word -x")


def test_spark_pack_does_not_ignore_its_argument(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["spark-pack", "/nonexistent/x"]) == 2
    told = capsys.readouterr().err
    assert told.startswith('unexpected argument "/nonexistent/x"; use --file=/nonexistent/x\n')


@pytest.mark.parametrize(
    "words",
    [
        ["tail", "orders"],
        ["pub", "orders"],
        ["pipeline", "run", "archive", "orders"],
        ["pipeline", "status", "orders"],
        ["spark-cluster", "start", "orders"],
        ["spark-cluster", "--port=0", "start", "orders"],
        ["up", "orders"],
    ],
    ids=" ".join,
)
def test_no_command_ignores_an_argument(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert capsys.readouterr().err.startswith('unexpected argument "orders"')


def test_the_word_of_a_command_may_stand_before_its_flags_or_behind() -> None:
    [table] = spark_cluster.flag_tables()
    assert take_word(table, ["start", "--port=1"]) == ("start", ["--port=1"])
    assert take_word(table, ["--port", "1", "start"]) == ("start", ["--port", "1"])
    assert take_word(table, ["--port", "1"]) == ("", ["--port", "1"])
    [pack] = spark_pack.flag_tables()
    assert take_word(pack, []) == ("", [])


def test_words_may_stand_between_flags() -> None:
    [table] = spark_cluster.flag_tables()
    assert take_words(table, ["a", "--port", "1", "b=2", "--port=3"]) == (
        ["a", "b=2"],
        ["--port", "1", "--port=3"],
    )
    assert take_words(table, ["--port=1", "--", "-a", "b"]) == (["-a", "b"], ["--port=1"])
    assert take_words(table, []) == ([], [])
