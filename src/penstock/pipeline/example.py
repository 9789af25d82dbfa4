"""The commented example that `penstock pipeline init` writes, with every key."""

from __future__ import annotations

from typing import Any

from penstock.pipeline.spec import SINKS, Invalid, Pipeline, Retry, Source, Transform, Trigger
from penstock.pipeline.spec_file import TOP
from penstock.settings.kinds import Bool, Float, Int
from penstock.settings.table import Setting, settings_of

COMMENT_COLUMN = 44

HEAD = """\
# A pipeline of Penstock.  Check it:  penstock pipeline check {file}
#                          Run it:    penstock pipeline run {file}
#
# Lines that start with "# " and a key show defaults; uncomment a line to change it.
"""

# Keys that are not commented out, so that the example runs as it is.
CHOSEN: dict[str, dict[str, str]] = {
    "source": {
        "topics": '["orders"]',
        "nsqd_http_addresses": '["127.0.0.1:4151"]',
        "body": '"json"',
        "schema": '"id bigint NOT NULL, customer string, total double"',
    },
    "transform": {"sql": '"SELECT customer, total, nsq_timestamp FROM input WHERE total > 0"'},
    "parquet": {"path": '"orders-table"', "partition_by": '["date"]'},
}


def example(name: str, file: str) -> str:
    """The text of a file for a new pipeline."""
    lines = [HEAD.format(file=file)]
    top = [s for s in _top_settings() if s.option not in ("spark", "parameters", "job")]
    for setting in top:
        lines.append(f'name = "{name}"' if setting.option == "name" else _line(setting))
    lines += [
        "",
        "# [parameters]                            # values of :name in SQL and ${name} here",
    ]
    lines += ["", "# [spark]                                 # any Spark setting"]
    lines += ['# "spark.driver.memory" = "4g"']
    lines += ["", "[source]", *_table("source", Source)]
    lines += ["", "[[transform]]                             # any number, in order"]
    lines += _table("transform", Transform)
    lines += ["", "[[sink]]                                  # any number", 'type = "parquet"']
    lines += _table("parquet", SINKS["parquet"])
    for kind, sink in SINKS.items():
        if kind != "parquet":
            lines += ["", "# [[sink]]", f'# type = "{kind}"', *_table(kind, sink)]
    for title, group in (("invalid", Invalid), ("retry", Retry), ("trigger", Trigger)):
        lines += ["", f"# [{title}]", *_table(title, group)]
    return "\n".join(lines) + "\n"


def _top_settings() -> list[Setting]:
    fields = Pipeline.__dataclass_fields__
    return [fields[name].metadata["setting"].named(name) for name in TOP]


def _table(name: str, kind: type[Any]) -> list[str]:
    chosen = CHOSEN.get(name, {})
    return [_line(setting, chosen.get(setting.option)) for setting in settings_of(kind)]


def _line(setting: Setting, value: str | None = None) -> str:
    text = f"{setting.option} = {value}" if value else f"# {setting.option} = {_default(setting)}"
    notes = [setting.help]
    if setting.default_text not in ("", "{}") and not value:
        notes.append(f"by default {setting.default_text}")
    if limits := setting.kind.limits():
        notes.append(limits)
    comment = f"# {'; '.join(notes)}"
    if len(text) > COMMENT_COLUMN:
        return f"{comment}\n{text}"
    return f"{text:<{COMMENT_COLUMN - 2}}{comment}"


def _default(setting: Setting) -> str:
    """The default, as written in the file."""
    value = setting.default
    if setting.kind.kind == "table":
        return "{}"
    if isinstance(setting.kind, (Bool, Int, Float)):
        return setting.kind.show(value)
    if isinstance(value, tuple):
        return "[" + ", ".join(f'"{setting.kind.show((item,))}"' for item in value) + "]"
    return f'"{setting.kind.show(value) if value is not None else ""}"'
