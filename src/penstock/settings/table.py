"""Declared settings: the options of a daemon are a frozen dataclass, each field a row of a table.

    @dataclass(frozen=True, slots=True)
    class Options:
        msg_timeout_ns: int = duration("Messages", "1m", "time to finish a message", minimum="1ns")

The field defines everything about an option:

    field    msg_timeout_ns          its name in the code; durations are nanoseconds
    option   msg_timeout             its name in the config file, the environment and /config
    flag     -msg-timeout            its name on the command line
    kind     Duration                how a text is parsed, and which values are allowed

``penstock.cli.flags`` reads command lines, environments and files by the table; the daemons read
and show values through it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from penstock.settings.kinds import Bool, Choice, Duration, Float, Int, Listed, Text, parse_duration


class Setting(NamedTuple):
    """One row.  ``option`` and ``flag`` are derived from ``field`` unless given."""

    kind: Text
    group: str
    help: str
    default: Any = None
    default_text: str = ""  # shown instead of a default that depends on the machine
    field: str = ""
    option: str = ""
    flag: str = ""
    own: bool = False  # Penstock's; NSQ does not have it

    def named(self, field: str) -> Setting:
        """Return the row with the names derived from ``field``."""
        option = self.option
        if not option:
            option = field.removesuffix("_ns") if isinstance(self.kind, Duration) else field
        flag = self.flag or option.replace("_", "-")
        return self._replace(field=field, option=option, flag=flag)

    def show_default(self) -> str:
        return self.default_text or self.kind.show(self.default)


def row(kind: Text, group: str, default: Any, help: str, **more: Any) -> Any:
    """Return a dataclass field with its row as metadata.

    A callable default is called at start; ``default_text`` describes its value.
    """
    setting = Setting(kind, group, help, None if callable(default) else default, **more)
    metadata = {"setting": setting}
    if callable(default):
        assert setting.default_text, "a default that depends on the machine needs default_text"
        return dataclasses.field(default_factory=default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def string(group: str, default: str | Callable[[], str], help: str, **more: Any) -> Any:
    return row(Text(), group, default, help, **more)


def boolean(group: str, default: bool, help: str, **more: Any) -> Any:
    return row(Bool(), group, default, help, **more)


def integer(
    group: str,
    default: int | Callable[[], int],
    help: str,
    *,
    minimum: int | None = None,
    maximum: int | None = None,
    checked: bool = True,
    **more: Any,
) -> Any:
    return row(Int(minimum, maximum, checked=checked), group, default, help, **more)


def number(
    group: str,
    default: float,
    help: str,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    **more: Any,
) -> Any:
    return row(Float(minimum, maximum), group, default, help, **more)


def duration(
    group: str,
    default: str,
    help: str,
    *,
    minimum: str = "0",
    maximum: str | None = None,
    **more: Any,
) -> Any:
    maximum_ns = None if maximum is None else parse_duration(maximum)
    kind = Duration(parse_duration(minimum), maximum_ns)
    return row(kind, group, parse_duration(default), help, **more)


def strings(group: str, help: str, **more: Any) -> Any:
    return row(Listed(Text()), group, (), help, **more)


def choice(
    group: str,
    default: str,
    help: str,
    codes: Iterable[str] | Mapping[str, int | None],
    *,
    aliases: Mapping[str, str] | None = None,
    bare: str | None = None,
    **more: Any,
) -> Any:
    words = codes if isinstance(codes, Mapping) else dict.fromkeys(codes)
    return row(Choice(words, aliases=aliases, bare=bare), group, default, help, **more)


def settings_of(options: type) -> tuple[Setting, ...]:
    """Return the table of an options class, in declaration order."""
    return tuple(
        field.metadata["setting"].named(field.name) for field in dataclasses.fields(options)
    )


def config_values(options: Any) -> dict[str, Any]:
    """Return all options by name, as NSQ's ``/config`` shows them: durations in ns, codes."""
    return {
        setting.option: setting.kind.to_json(getattr(options, setting.field))
        for setting in settings_of(type(options))
    }
