from __future__ import annotations

import dataclasses
import re
import shlex
from pathlib import Path

import pytest

from penstock.cli import pipeline as cli
from penstock.cli.flags import take_word
from penstock.errors import ParameterError, PipelineError
from penstock.pipeline import spec_file
from penstock.pipeline.spec import (
    ConsoleSink,
    ParquetSink,
    Pipeline,
    Source,
    TopicSink,
    Transform,
    Trigger,
)
from penstock.pipeline.spec_file import SHIPPED, from_table, read_pipeline, shipped_names

EXAMPLES = Path(__file__).parents[3] / "examples" / "pipelines"
MINIMAL = """
name = "orders"

[source]
topics = ["orders", "clicks"]
nsqd_http_addresses = "127.0.0.1:4151"

[sink]
type = "console"
"""


def write(folder: Path, text: str, name: str = "orders.toml") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def read(folder: Path, text: str, *overrides: str) -> Pipeline:
    return read_pipeline(write(folder, text), overrides)


def refusal(folder: Path, text: str, *overrides: str) -> str:
    """What is said about it, behind the name of the file."""
    path = write(folder, text)
    with pytest.raises(PipelineError) as caught:
        read_pipeline(path, overrides)
    said = str(caught.value)
    assert said.startswith(f"{path}: ")
    return said.removeprefix(f"{path}: ")


def test_a_minimal_file_is_a_pipeline(tmp_path: Path) -> None:
    pipeline = read(tmp_path, MINIMAL)
    assert pipeline == Pipeline(
        name="orders",
        sources={
            "input": Source(topics=("orders", "clicks"), nsqd_http_addresses=("127.0.0.1:4151",))
        },
        sinks=(ConsoleSink(),),
        folder=tmp_path,
    )
    assert pipeline.checkpoint_path == str(tmp_path / "checkpoints" / "orders")
    assert (pipeline.retry_topic, pipeline.dead_topic) == ("orders.retry", "orders.dead")
    assert pipeline.invalid_topic == "orders.invalid"


def test_kinds_are_read_as_people_write_them(tmp_path: Path) -> None:
    text = MINIMAL.replace('type = "console"', 'type = "parquet"\npath = "t"\nfile_size = "64MB"')
    text += '[trigger]\nevery = "90s"\n[spark]\n"spark.ui.enabled" = true\n'
    text = text.replace("[source]", "[source]\nstart = 2026-01-31T12:00:00Z")
    pipeline = read(tmp_path, text)
    assert pipeline.sinks == (ParquetSink(path="t", file_size=64_000_000),)
    assert pipeline.trigger == Trigger(every_ns=90_000_000_000)
    assert pipeline.spark == {"spark.ui.enabled": "true"}
    assert pipeline.sources["input"].start == "2026-01-31T12:00:00+00:00"


def test_several_sources_and_sinks_have_names_and_numbers(tmp_path: Path) -> None:
    text = """
name = "joined"
[source.orders]
topics = "orders"
lookupd_http_addresses = ["127.0.0.1:4161"]
[source.customers]
format = "parquet"
path = "customers"
[[transform]]
name = "both"
sql = "SELECT * FROM orders JOIN customers USING (id)"
[[sink]]
type = "topic"
topic = "out"
[[sink]]
type = "console"
"""
    pipeline = read(tmp_path, text)
    assert list(pipeline.sources) == ["orders", "customers"]
    assert [sink.type for sink in pipeline.sinks] == ["topic", "console"]
    changed = read(tmp_path, text, "sink.2.rows=5", "source.orders.channel=mine")
    assert changed.sinks[1] == ConsoleSink(rows=5)
    assert changed.sources["orders"].channel == "mine"
    assert "--set sink.rows=5: there are 2" in refusal(tmp_path, text, "sink.rows=5")


def test_parameters_fill_the_file_and_leave_sql_alone(tmp_path: Path) -> None:
    text = MINIMAL.replace('"127.0.0.1:4151"', '"${host}:4151"')
    text += '[parameters]\nhost = "a"\n[[transform]]\nsql = "SELECT \'${x}\' FROM input"\n'
    assert read(tmp_path, text).sources["input"].nsqd_http_addresses == ("a:4151",)
    changed = read(tmp_path, text, "parameters.host=b")
    assert changed.sources["input"].nsqd_http_addresses == ("b:4151",)
    assert changed.parameters == {"host": "b"}
    wrong = text.replace("${host}", "${hots}")
    assert "among [parameters] unknown key 'hots' (did you mean host?)" in refusal(tmp_path, wrong)


def test_what_is_set_on_the_command_line_wins(tmp_path: Path) -> None:
    pipeline = read(
        tmp_path,
        MINIMAL,
        "source.topics=a,b",
        "master=local[1]",
        "spark.ui.enabled=true",
        "trigger.available_now=true",
        "checkpoint=/elsewhere",
    )
    assert pipeline.sources["input"].topics == ("a", "b")
    assert pipeline.master == "local[1]"
    assert pipeline.spark == {"spark.ui.enabled": "true"}
    assert pipeline.trigger.available_now
    assert pipeline.checkpoint_path == "/elsewhere"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("topics =", "tpics ="), "[source] unknown key 'tpics' (did you mean topics?)"),
        (("console", "consle"), "[sink] type must be one of topic, parquet, delta, console, plot"),
        (("[sink]", "[snik]"), "at the top unknown key 'snik' (did you mean sink?)"),
        (('name = "orders"', 'name = "a b"'), "name must be 1 to 56 letters, digits or ._-"),
        (('name = "orders"', "name = 7"), "name must be a string, not 7"),
        (('"clicks"', '"cl icks"'), "[source] topics: 'cl icks' is not a valid topic name"),
        (('"127.0.0.1:4151"', '""'), "[source] either nsqd_http_addresses or lookupd_http_addr"),
        (("[sink]\ntype", "[[sink]]\npath = 1\ntype"), "[[sink]] 1: (console) unknown key"),
        (('type = "console"', 'type = "parquet"'), "[sink] path must be given"),
        (('"console"', '"topic"\ntopic = "orders"'), "topic orders is both read and written"),
        (('"console"', '"topic"\nrate = 5'), "[sink] rate is for a pipeline with trigger once"),
        (('"console"', '"plot"\npath = "x"'), "[sink] values must be given"),
        (("[sink]", 'body = "json"\n[sink]'), '[source] schema must be given with body = "json"'),
        (("[sink]", 'body = "xml"\n[sink]'), "[source] body must be one of bytes, text, json"),
        (("[sink]", 'dedupe = "id"\n[sink]'), "[source] dedupe needs a watermark"),
        (("[sink]", 'watermark = "10m"\n[sink]'), '[source] watermark must be such as "10 minu'),
        (("[sink]", "[[transform]]\n[sink]"), "[[transform]] 1: exactly one of sql, function"),
        (("[sink]", '[[transform]]\nfunction = "f"\n[sink]'), "[transform]] 1: function must be"),
        (("[sink]", "[trigger]\nonce = 1\n[sink]"), "[trigger] once must be true or false, not 1"),
        (("[sink]", '[trigger]\nevery = "x"\n[sink]'), "[trigger] every must be a duration"),
        (("[sink]", "[trigger]\nmessages = 5\n[sink]"), "[trigger] messages needs every"),
        (("[sink]", "[spark]\nmemory = 1\n[sink]"), "[spark] memory: Spark settings start"),
        (("[sink]", "[retry]\nmax_attempts = 0\n[sink]"), "[retry] max_attempts must be an int"),
        (("[sink]", "[[retry]]\n[sink]"), "[retry] must be one table"),
        (('0.1:4151"', '0.1"'), "[source] nsqd_http_addresses: '127.0.0.1' must be host:port"),
        (('"127.0.0.1:4151"', '"a:1,b:x"'), "[source] nsqd_http_addresses: 'b:x' must be host"),
        (('0.1:4151"', '0.1:0"'), "[source] nsqd_http_addresses: '127.0.0.1:0' must be host:port"),
        (('"127.0.0.1:4151"', '"::1"'), "[source] nsqd_http_addresses: '::1' must be host:port"),
        (
            ('nsqd_http_addresses = "127', 'lookupd_http_addresses = "http://h/'),
            "_addresses: 'http",
        ),
        (('"console"', '"topic"\ntopic = "o"\nnsqd_http_addresses = "h"'), "[sink] nsqd_http_ad"),
        (("[sink]", '[source.options]\nNsqdHttpAddresses = "h"\n[sink]'), "options: NsqdHttpA"),
        (("[sink]", 'body = "json"\nschema = "a itn"\n[sink]'), "[source] schema: column a: Spark"),
        (("[sink]", 'body = "json"\nschema = "nsq_id int"\n[sink]'), "the name nsq_id is reserved"),
        (
            ("[sink]", 'format = "csv"\nschema = "a: int"\n[sink]'),
            "schema: column a: ':' is not allowed",
        ),
        (
            ("[sink]", '[[transform]]\nfunction = "m:f"\nreturns = "a text"\n[sink]'),
            "[[transform]] 1: returns: column a: Spark has no type 'text' (did you mean string?)",
        ),
        (('"console"', '"delta"\npath = "hdfs://h/t"'), "[sink] path: delta needs a local path"),
        (('"console"', '"parquet"\npath = "file://h/t"'), "'h' would be another machine"),
        (("[source]", '[source]\noptions = "x"\nformat = ['), "Invalid"),
    ],
    ids=lambda value: value[1].partition("\n")[0][:40] if isinstance(value, tuple) else "",
)
def test_what_is_wrong_is_said_with_its_place(
    tmp_path: Path, change: tuple[str, str], said: str
) -> None:
    assert said in refusal(tmp_path, MINIMAL.replace(*change))


def test_sql_must_stand_before_functions(tmp_path: Path) -> None:
    steps = '[[transform]]\nfunction = "m:f"\n[[transform]]\nsql = "SELECT 1"\n[sink]'
    text = MINIMAL.replace("[sink]", steps)
    assert "[[transform]] 2: sql and dataframe must come before the functions" in refusal(
        tmp_path, text
    )


def test_a_function_needs_messages(tmp_path: Path) -> None:
    text = """
name = "x"
[source]
format = "rate"
[[transform]]
function = "m:f"
[sink]
type = "console"
"""
    assert "a function needs a source of messages" in refusal(tmp_path, text)


def test_a_table_behind_a_function_needs_columns(tmp_path: Path) -> None:
    text = MINIMAL.replace("[sink]", '[[transform]]\nfunction = "m:f"\n[sink]')
    text = text.replace('type = "console"', 'type = "delta"\npath = "x"')
    assert "the last function must declare them with returns" in refusal(tmp_path, text)
    assert read(tmp_path, text.replace('"m:f"', '"m:f"\nreturns = "id bigint"')).functions


def test_a_topic_may_not_be_read_twice_in_one_channel(tmp_path: Path) -> None:
    text = """
name = "x"
[source.a]
topics = "t"
nsqd_http_addresses = "h:1"
[source.b]
topics = "t"
nsqd_http_addresses = "h:1"
[[transform]]
sql = "SELECT * FROM a JOIN b USING (id)"
[sink]
type = "console"
"""
    assert len(read(tmp_path, text).sources) == 2
    same = ("source.a.channel=c", "source.b.channel=c")
    assert "[source.b] topic t is read twice in channel c" in refusal(tmp_path, text, *same)


def test_files_and_names_that_are_not_there_are_told(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"no\.toml: no such file"):
        read_pipeline("no.toml")
    with pytest.raises(
        PipelineError, match=r"neither a \.toml or \.py file nor one of archive, audit"
    ):
        read_pipeline("archiv")


@pytest.mark.parametrize("name", shipped_names())
def test_shipped_pipelines_are_right_and_described(name: str) -> None:
    pipeline = read_pipeline(name)
    assert pipeline.name == name
    assert 10 < len(pipeline.description) < 80
    assert pipeline.folder == Path.cwd()
    text = (spec_file.SHIPPED / f"{name}.toml").read_text()
    for parameter in pipeline.parameters:
        used = text.count(f"${{{parameter}}}") + text.count(f":{parameter}")
        assert used or pipeline.job, f"{parameter} is not used"


MODULE = """
from penstock.pipeline import ConsoleSink, Pipeline, Source, Transform

def double(row):
    return {"n": row["n"] * 2}

pipeline = Pipeline(
    name="python",
    sources={"input": Source(topics=("t",), nsqd_http_addresses=("127.0.0.1:4151",))},
    transforms=(Transform(function=double),),
    sinks=(ConsoleSink(),),
    parameters={"x": "0"},
)
"""


def test_a_python_module_is_a_pipeline_too(tmp_path: Path) -> None:
    path = write(tmp_path, MODULE, "mine.py")
    pipeline = read_pipeline(path, ["master=local[1]", "parameters.x=1"])
    assert pipeline.folder == tmp_path
    assert pipeline.transforms[0].function({"n": 2}) == {"n": 4}
    assert (pipeline.master, pipeline.parameters) == ("local[1]", {"x": "1"})
    with pytest.raises(PipelineError, match="in a pipeline in Python only these can be set"):
        read_pipeline(path, ["source.topics=x"])
    with pytest.raises(ParameterError, match="has no parameter 'y'; it has x"):
        read_pipeline(path, ["parameters.y=1"])


def test_a_parameter_that_is_not_there_is_refused_with_the_nearest() -> None:
    with pytest.raises(ParameterError) as caught:
        read_pipeline("archive", ["parameters.topic=orders"])
    said = "has no parameter 'topic' (did you mean topics?); it has topics, path, nsqd, lookupd,"
    assert said in str(caught.value)
    assert read_pipeline("archive", ["?parameters.topic=orders"]) == read_pipeline("archive")


def test_parameters_are_those_declared_and_those_used(tmp_path: Path) -> None:
    """One without a default is given each time; SQL that is set may name another."""
    text = MINIMAL.replace('"127.0.0.1:4151"', '"${host}:4151"')
    given = ("parameters.host=h", "parameters.size=5", "transform.sql=SELECT :size AS a FROM input")
    text = text.replace("[sink]", '[[transform]]\nsql = "SELECT 1::int FROM input"\n[sink]')
    assert read(tmp_path, text, *given).parameters == {"host": "h", "size": "5"}
    assert "no parameter 'size'; it has host" in refusal(tmp_path, text, *given[:2])
    assert "no parameter 'int'; it has host" in refusal(tmp_path, text, "parameters.int=1")
    assert "no parameter 'a.b'; it has host" in refusal(tmp_path, text, "parameters.a.b=1")
    none = refusal(tmp_path, MINIMAL, "parameters.nsqd=h:1")
    assert "no parameter 'nsqd'; it has none; its brokers: --set source.nsqd_http_addr" in none
    assert "[parameters] must be one table" in refusal(tmp_path, "parameters = 5\n" + MINIMAL)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import nothing_like_this", "ModuleNotFoundError: No module named 'nothing_like_this'"),
        ("pipeline = 5", 'the module has no Pipeline named "pipeline"'),
        (MODULE.replace('"python"', '""'), "name must be 1 to 56"),
    ],
)
def test_what_is_wrong_with_a_module_is_told(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(PipelineError, match=said):
        read_pipeline(write(tmp_path, text, "mine.py"))


def test_defaults_of_dataclasses_are_those_of_the_file(tmp_path: Path) -> None:
    """What a key defaults to does not depend on how a pipeline is written."""
    table = {"name": "x", "source": {"topics": "t", "nsqd_http_addresses": "h:1"}}
    made = from_table({**table, "sink": {"type": "topic", "topic": "o"}}, (), Path())
    source = Source(topics=("t",), nsqd_http_addresses=("h:1",))
    assert made == Pipeline(name="x", sources={"input": source}, sinks=(TopicSink(topic="o"),))
    assert dataclasses.replace(made, transforms=(Transform(sql="SELECT 1"),)).queries


def test_addresses_of_every_kind_are_taken(tmp_path: Path) -> None:
    for address in ("h:1", "[::1]:4151", "https://h.example:4152", "http://h:1/"):
        assert read(tmp_path, MINIMAL.replace("127.0.0.1:4151", address))
    with pytest.raises(PipelineError, match="parameter nsqd: 'h' must be host:port"):
        read_pipeline("audit", ["parameters.nsqd=h"])


@pytest.mark.parametrize("name", shipped_names())
@pytest.mark.parametrize("by_path", [False, True])
def test_a_shipped_pipeline_writes_where_the_user_is(
    name: str, by_path: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever way it is named: never into the folder of the program."""
    monkeypatch.chdir(tmp_path)
    link = tmp_path / "link"
    link.symlink_to(SHIPPED)
    pipeline = read_pipeline(str(link / f"{name}.toml") if by_path else name)
    places = [place for place in pipeline.places() if not place.startswith(("topic ", "the "))]
    for place in (*places, pipeline.checkpoint_path):
        assert Path(place).is_absolute()
        assert Path(place).is_relative_to(tmp_path)


def test_relative_paths_of_a_file_start_beside_it_unless_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    file = write(tmp_path / "files", (EXAMPLES / "orders.toml").read_text())
    own = read_pipeline(file)
    assert own.places() == [str(tmp_path / "files" / "orders-table"), "topic big-orders"]
    moved = read_pipeline(file, (), Path("out"))
    out = tmp_path / "elsewhere" / "out"
    assert moved.places() == [str(out / "orders-table"), "topic big-orders"]
    assert moved.checkpoint_path == str(out / "checkpoints" / "orders-table")
    assert moved.modules == own.modules == tmp_path / "files"


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.*")), ids=lambda path: path.name)
def test_an_example_as_it_is_documented_writes_below_the_working_directory(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = re.findall(r"penstock (pipeline run .*)", path.read_text(encoding="utf-8"))
    if path.name == "rates.py":
        assert not commands
        return
    [command] = commands
    (tmp_path / "examples").symlink_to(EXAMPLES.parent)
    monkeypatch.chdir(tmp_path)
    words = shlex.split(command)[2:]
    table = cli.flag_tables()[0]
    file, flags = take_word(table, words)
    options = table.parse(flags, {}).options
    pipeline = read_pipeline(file, cli.overrides_of(options), Path(options.folder))
    places = [place for place in pipeline.places() if not place.startswith("topic ")]
    for place in (*places, pipeline.checkpoint_path):
        assert Path(place).is_relative_to(tmp_path / "data"), place
