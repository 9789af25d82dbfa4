"""Reads a pipeline from a file: ``orders.toml``, ``orders.py``, or the name of a shipped one.

Rule 1: an error names the file, the table, the key and what is allowed there.
Rule 2: an unknown key is an error: a typing error must not change what is read or written.
Rule 3: nothing here needs Spark or a broker, so `check` can be run anywhere.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import re
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from penstock.errors import ParameterError, PipelineError
from penstock.pipeline.consistency import check
from penstock.pipeline.spec import (
    INPUT,
    SINKS,
    Invalid,
    Pipeline,
    Retry,
    Source,
    Transform,
    Trigger,
)
from penstock.settings.table import Setting, settings_of

SHIPPED = Path(__file__).resolve().with_name("shipped")
TABLES = ("source", "transform", "sink", "retry", "invalid", "trigger")
# The fields of Pipeline that are keys of the file; the others are tables, or set by the reader.
TOP = ("name", "description", "checkpoint", "master", "output_mode", "job", "spark", "parameters")
FILLED = re.compile(r"\$\{(\w+)\}")

Row = TypeVar("Row")


def shipped_names() -> list[str]:
    return sorted(path.stem for path in SHIPPED.glob("*.toml"))


def read_pipeline(
    reference: str, overrides: Sequence[str] = (), folder: Path | None = None
) -> Pipeline:
    """Return the pipeline of a file or a name, or raise PipelineError.

    ``overrides`` are ``table.key=value``, as on the command line; one that starts with ``?`` is
    ignored if it is a parameter that the pipeline does not have.  Relative paths are relative to
    ``folder``, or else to the file's folder.
    """
    path = find(reference)
    try:
        if path.suffix == ".py":
            pipeline = _from_module(path, overrides)
        else:
            pipeline = from_table(_load(path), overrides, folder_of(path))
        if folder is not None:
            pipeline = dataclasses.replace(
                pipeline, folder=folder.absolute(), code_folder=pipeline.folder
            )
        return check(pipeline)
    except PipelineError as error:
        raise type(error)(f"{path}: {error}") from None


def find(reference: str) -> Path:
    path = Path(reference)
    if path.suffix in (".toml", ".py"):
        if not path.is_file():
            raise PipelineError(f"{reference}: no such file")
        return path.resolve()
    if reference in shipped_names():
        return SHIPPED / f"{reference}.toml"
    raise PipelineError(
        f"{reference}: neither a .toml or .py file nor one of {', '.join(shipped_names())}"
    )


def folder_of(path: Path) -> Path:
    """The base of relative paths: the current folder for a shipped pipeline."""
    return Path.cwd() if path.parent == SHIPPED else path.parent


def _load(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PipelineError(str(error)) from None


def _from_module(path: Path, overrides: Sequence[str]) -> Pipeline:
    spec = importlib.util.spec_from_file_location(f"penstock_pipeline_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module
    # The modules that it imports are beside the file.
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise PipelineError(f"{type(error).__name__}: {error}") from error
    pipeline = getattr(module, "pipeline", None)
    if not isinstance(pipeline, Pipeline):
        raise PipelineError('the module has no Pipeline named "pipeline"')
    if pipeline.folder == Path():
        pipeline = dataclasses.replace(pipeline, folder=path.parent)
    return _overridden(pipeline, overrides)


def _overridden(pipeline: Pipeline, overrides: Sequence[str]) -> Pipeline:
    """Override keys of a pipeline in Python: only those at the top, and its parameters."""
    texts = [step.sql for step in (*pipeline.transforms, *pipeline.sinks)]
    known = list(dict.fromkeys([*pipeline.parameters, *_named_in_sql(texts)]))
    for text in _fitting(overrides, known):
        words, value = _split(text)
        if words[0] == "parameters" and len(words) == 2:
            changed: Any = {**pipeline.parameters, words[1]: value}
        elif len(words) == 1 and words[0] in TOP:
            changed = _convert(_settings(Pipeline, TOP)[words[0]], value, "")
        else:
            raise PipelineError(
                f"--set {text}: in a pipeline in Python only these can be set: "
                f"{', '.join(TOP)}, parameters.NAME"
            )
        pipeline = dataclasses.replace(pipeline, **{words[0]: changed})
    return pipeline


def from_table(table: dict[str, Any], overrides: Sequence[str], folder: Path) -> Pipeline:
    """Return the pipeline of a parsed TOML file."""
    # Parameters last: other overrides, such as SQL, may name more of them.
    for text in (text for text in overrides if not _is_parameter(text)):
        _override(table, text)
    given = [text for text in overrides if _is_parameter(text)]
    for text in _fitting(given, _parameters_of(table)):
        _override(table, text)
    table = _filled(table)
    known = [*TOP, *TABLES]
    for key in table:
        if key not in known:
            raise PipelineError(_unknown(key, "at the top", known))
    top = {key: table[key] for key in TOP if key in table}
    values = _values(_settings(Pipeline, TOP), top, "")
    return Pipeline(
        **values,
        sources=_sources(table.get("source", {})),
        transforms=tuple(_read(Transform, row, place) for row, place in _rows(table, "transform")),
        sinks=tuple(_sink(row, place) for row, place in _rows(table, "sink")),
        retry=_read(Retry, _only(table, "retry"), "[retry] "),
        invalid=_read(Invalid, _only(table, "invalid"), "[invalid] "),
        trigger=_read(Trigger, _only(table, "trigger"), "[trigger] "),
        folder=folder,
    )


def _is_parameter(text: str) -> bool:
    return text.removeprefix("?").startswith("parameters.")


def _parameters_of(table: Mapping[str, Any]) -> list[str]:
    """The parameters of a file: those in its table, and those its values and SQL use."""
    found = dict.fromkeys(_only(table, "parameters"))

    def collect(value: Any) -> None:
        match value:
            case dict():
                for key, inner in value.items():
                    if key == "sql":
                        found.update(dict.fromkeys(_named_in_sql([str(inner)])))
                    else:
                        collect(inner)
            case list():
                for inner in value:
                    collect(inner)
            case str():
                found.update(dict.fromkeys(FILLED.findall(value)))

    collect(table)
    return list(found)


def _named_in_sql(texts: Sequence[str]) -> list[str]:
    return [name for text in texts for name in re.findall(r"(?<![:\w]):([A-Za-z_]\w*)", text)]


def _fitting(overrides: Sequence[str], known: Sequence[str]) -> list[str]:
    """The overrides; raises ParameterError for an unknown parameter.

    With a misspelled parameter the pipeline must not run as if it had not been given.
    """
    fitting = []
    for text in overrides:
        words, _ = _split(text.removeprefix("?"))
        if not _is_parameter(text) or ".".join(words[1:]) in known:
            fitting.append(text.removeprefix("?"))
        elif not text.startswith("?"):
            raise ParameterError(_no_parameter(".".join(words[1:]), known))
    return fitting


def _no_parameter(name: str, known: Sequence[str]) -> str:
    from difflib import get_close_matches

    close = get_close_matches(name, known, n=1)
    hint = f" (did you mean {close[0]}?)" if close else ""
    has = f"it has {', '.join(known)}" if known else "it has none"
    text = f"the pipeline has no parameter {name!r}{hint}; {has}"
    if name in ("nsqd", "lookupd"):
        # What --nsqd-http-address and --lookupd-http-address set.
        text += f"; its brokers: --set source.{name}_http_addresses=host:port"
    return text


def _filled(table: dict[str, Any]) -> dict[str, Any]:
    """The table with ``${name}`` replaced by the parameter; SQL uses ``:name`` instead."""
    parameters = _only(table, "parameters")

    def fill(value: Any) -> Any:
        match value:
            case dict():
                return {k: v if k == "sql" else fill(v) for k, v in value.items()}
            case list():
                return [fill(item) for item in value]
            case str():
                return FILLED.sub(replaced, value)
        return value

    def replaced(match: re.Match[str]) -> str:
        if match[1] not in parameters:
            raise PipelineError(_unknown(match[1], "among [parameters]", list(parameters)))
        return str(parameters[match[1]])

    return {**fill(table), "parameters": parameters}


def _sources(table: object) -> dict[str, Source]:
    if not isinstance(table, dict):
        raise PipelineError("[source] must be a table")
    several = table and all(
        isinstance(row, dict) and key not in Source.__dataclass_fields__
        for key, row in table.items()
    )
    if not several:
        return {INPUT: _read(Source, table, "[source] ")} if table else {}
    return {name: _read(Source, row, f"[source.{name}] ") for name, row in table.items()}


def _sink(row: dict[str, Any], place: str) -> Any:
    row = dict(row)
    kind = row.pop("type", None)
    if kind not in SINKS:
        raise PipelineError(f"{place}type must be one of {', '.join(SINKS)}, not {kind!r}")
    return _read(SINKS[kind], row, f"{place}({kind}) ")


def _only(table: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = table.get(name, {})
    if not isinstance(found, dict):
        raise PipelineError(f"[{name}] must be one table, written [{name}]")
    return found


def _rows(table: dict[str, Any], name: str) -> list[tuple[dict[str, Any], str]]:
    """The tables of ``[[name]]`` or ``[name]``, each with its place for errors."""
    found = table.get(name, [])
    if isinstance(found, dict):
        return [(found, f"[{name}] ")]
    if not isinstance(found, list) or not all(isinstance(row, dict) for row in found):
        raise PipelineError(f"{name} must be tables, written [[{name}]]")
    return [(row, f"[[{name}]] {number}: ") for number, row in enumerate(found, 1)]


def _settings(kind: type[Any], names: Sequence[str] | None = None) -> dict[str, Setting]:
    if names is None:
        return {setting.option: setting for setting in settings_of(kind)}
    fields = kind.__dataclass_fields__
    return {name: fields[name].metadata["setting"].named(name) for name in names}


def _read(kind: type[Row], table: Mapping[str, Any], place: str) -> Row:
    return kind(**_values(_settings(kind), table, place))


def _values(
    settings: Mapping[str, Setting], table: Mapping[str, Any], place: str
) -> dict[str, Any]:
    values = {}
    for key, value in table.items():
        if key not in settings:
            raise PipelineError(_unknown(key, place.strip(), list(settings)))
        values[settings[key].field] = _convert(settings[key], value, place)
    return values


def _convert(setting: Setting, value: object, place: str) -> Any:
    try:
        return setting.kind.convert(value)
    except ValueError:
        allowed = setting.kind.allowed().rstrip(",")
        raise PipelineError(f"{place}{setting.option} must be {allowed}, not {value!r}") from None


def _unknown(key: str, place: str, known: Sequence[str]) -> str:
    from difflib import get_close_matches

    close = get_close_matches(key, known, n=1)
    hint = f" (did you mean {close[0]}?)" if close else ""
    return f"{place} unknown key {key!r}{hint}; known: {', '.join(known)}"


def _split(text: str) -> tuple[list[str], str]:
    name, equals, value = text.partition("=")
    words = name.strip().split(".")
    if not equals or not all(words):
        raise PipelineError(f"--set {text}: must be table.key=value or key=value")
    return words, value


def _override(table: dict[str, Any], text: str) -> None:
    """Set one key.  ``sink.path`` is that of the only sink, ``sink.2.path`` of the second."""
    words, value = _split(text)
    if words[0] == "spark":
        # These names contain dots, and start with the name of the table.
        words = ["spark", ".".join(words if words[1:2] != ["spark"] else words[1:])]
    here: Any = table
    for number, word in enumerate(words[:-1]):
        if isinstance(here, list):
            here = _element(here, word, text)
            continue
        here = here.setdefault(word, {})
        if isinstance(here, list) and not words[number + 1].isdecimal():
            here = _element(here, "", text)
    if not isinstance(here, dict):
        raise PipelineError(f"--set {text}: no such table")
    here[words[-1]] = value


def _element(rows: list[Any], word: str, text: str) -> Any:
    if not word and len(rows) == 1:
        return rows[0]
    if word.isdecimal() and 1 <= int(word) <= len(rows):
        return rows[int(word) - 1]
    raise PipelineError(f"--set {text}: there are {len(rows)}; name one by its number")
