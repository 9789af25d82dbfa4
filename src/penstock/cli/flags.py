"""Parses command lines in Go's style, environment variables and TOML files, by a table of options.

    -flag=v   --flag=v   -flag v   --flag v   -switch   --switch=false   --  (ends the flags)

Rule 1: the command line overrides the environment, which overrides the file, which overrides the
        default.
Rule 2: everything that NSQ accepts is accepted; what NSQ ignores is ignored with a warning.
Rule 3: the error for an invalid value names the place, the value and the allowed values.

Every daemon and tool declares its options with ``penstock.settings.table``; flags, help,
environment, config file and documentation are derived from them here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

from penstock.errors import OptionError
from penstock.settings.kinds import Listed
from penstock.settings.table import Setting, settings_of

Options = TypeVar("Options")
Action = Literal["run", "help", "version"]

COMMON = (
    ("config", "path", "path of a TOML file with options"),
    ("version", "", "print the version and exit"),
    ("help", "", "print this text and exit"),
)

HELP = frozenset(("-h", "--h", "-help", "--help"))


class UsageError(OptionError):
    """The command line is wrong: exit code 2, as with Go's flag package."""


@dataclass
class Parsed(Generic[Options]):
    """A parsed command line; ``options`` are the defaults unless the action is "run"."""

    action: Action
    options: Options
    warnings: list[str] = field(default_factory=list)


@dataclass
class _Line:
    """The command line alone, before environment and file are read."""

    action: Action = "run"
    config_path: str = ""
    values: dict[str, Any] = field(default_factory=dict)
    flag_count: int = 0  # arguments up to the end of the flags, including values
    arguments: Sequence[str] = ()  # after the flags


class FlagTable(Generic[Options]):
    """The flags of one program.

    ``ignored`` are flags that NSQ still accepts without effect: (name, help).  An argument that is
    not a flag is refused, with a hint at ``argument_flag``, the flag that was probably meant; with
    ``ignores_arguments`` it is ignored, as by NSQ's daemons.  ``statuses`` are the exit statuses,
    if there are more than the usual three: (number, help).  ``words`` are what the command takes
    beside flags, for the help.
    """

    def __init__(
        self,
        program: str,
        options: type[Options],
        *,
        summary: str,
        environment_prefix: str,
        ignored: Iterable[tuple[str, str]] = (),
        argument_flag: str = "topic",
        ignores_arguments: bool = False,
        statuses: Sequence[tuple[int, str]] = (),
        words: str = "",
    ) -> None:
        self.program = program
        self.usage = f"{program} {words} [flags]" if words else f"{program} [flags]"
        self.options = options
        self.summary = summary
        self.environment_prefix = environment_prefix
        self.settings = settings_of(options)
        self.ignored = tuple(ignored)
        self.statuses = tuple(statuses)
        self._by_flag = {setting.flag: setting for setting in self.settings}
        self._by_option = {setting.option: setting for setting in self.settings}
        self._ignored_names = frozenset(name for name, _ in self.ignored)
        self._argument_flag = argument_flag
        self._ignores_arguments = ignores_arguments

    def parse(self, arguments: Sequence[str], environment: Mapping[str, str]) -> Parsed[Options]:
        """Parse the arguments (without the program's name), or raise OptionError."""
        line = self._parse_line(arguments)
        if line.action != "run":
            return Parsed(line.action, self.options())
        warnings = []
        if line.arguments:
            text = self._unexpected(line, arguments)
            if not self._ignores_arguments:
                raise UsageError(text)
            ignored = " ".join(line.arguments)
            warnings.append(f"{text}; ignoring it and everything after it, as NSQ does: {ignored}")
        config_path = line.config_path or environment.get(self.environment_prefix + "CONFIG", "")
        values = self._read_config(config_path, warnings) if config_path else {}
        values.update(self._read_environment(environment, warnings))
        values.update(line.values)
        return Parsed("run", self.options(**values), warnings)

    def _unexpected(self, line: _Line, arguments: Sequence[str]) -> str:
        """The error text for the first argument that is not a flag."""
        argument = line.arguments[0]
        before = arguments[line.flag_count - 1].lstrip("-") if line.flag_count else ""
        switch = self._by_flag.get(before)
        if switch is not None and switch.kind.kind == "bool" and argument in ("true", "false"):
            return f'unexpected argument "{argument}"; use --{before}={argument}'
        setting = self._by_flag.get(self._argument_flag)
        if setting is None or (
            setting.field in line.values and not isinstance(setting.kind, Listed)
        ):
            return f'unexpected argument "{argument}"'
        return f'unexpected argument "{argument}"; use --{setting.flag}={argument}'

    def flags_of(self, arguments: Sequence[str]) -> Sequence[str]:
        """The arguments up to the end of the flags, so that flags can be appended."""
        return arguments[: self._parse_line(arguments).flag_count]

    def _parse_line(self, arguments: Sequence[str]) -> _Line:
        line = _Line()
        position = 0
        while position < len(arguments):
            line.flag_count = position
            argument = arguments[position]
            if len(argument) < 2 or not argument.startswith("-"):
                break
            position += 1
            if argument == "--":
                break
            name, equals, text = argument[2 if argument[1] == "-" else 1 :].partition("=")
            if not name or name.startswith("-"):
                raise UsageError(f"bad flag syntax: {argument}")
            following = arguments[position] if position < len(arguments) else None
            position += self._take(line, name, text if equals else None, following)
            if line.action == "help":
                break
        else:
            line.flag_count = position
            return line
        line.arguments = [] if line.action == "help" else list(arguments[position:])
        return line

    def _take(self, line: _Line, name: str, text: str | None, following: str | None) -> int:
        """Parse one flag; return how many of the following arguments belong to it."""
        if name in ("h", "help"):
            line.action = "help"
            return 0
        if name in self._ignored_names:
            return int(text is None and following is not None and not following.startswith("-"))
        if name == "version":
            if self._switch(name, text):
                line.action = "version"
            return 0
        setting = self._by_flag.get(name)
        if setting is None and name != "config":
            raise UsageError(f"flag provided but not defined: -{name}{self._suggestion(name)}")
        used = 0
        if text is None:
            text = setting.kind.bare if setting is not None else None
        if text is None:
            if following is None:
                raise UsageError(f"flag needs an argument: -{name}")
            text, used = following, 1
        if setting is None:
            line.config_path = text
            return used
        try:
            value = setting.kind.parse(text)
        except ValueError:
            raise UsageError(_refusal(text, f"flag -{name}", setting)) from None
        if isinstance(setting.kind, Listed):
            value = setting.kind.join(line.values.get(setting.field, ()), value)
        line.values[setting.field] = value
        return used

    def _switch(self, name: str, text: str | None) -> bool:
        from penstock.settings.kinds import parse_bool

        try:
            return parse_bool("true" if text is None else text)
        except ValueError:
            raise UsageError(f'invalid boolean value "{text}" for -{name}') from None

    def _suggestion(self, name: str) -> str:
        from difflib import get_close_matches

        close = get_close_matches(name, self._by_flag, n=1, cutoff=0.75)
        return f" (did you mean -{close[0]}?)" if close else ""

    def _read_environment(
        self, environment: Mapping[str, str], warnings: list[str]
    ) -> dict[str, Any]:
        """An empty variable counts as unset: scripts and containers often set them."""
        values: dict[str, Any] = {}
        prefix = self.environment_prefix
        for variable in sorted(environment):
            text = environment[variable]
            if not variable.startswith(prefix) or not text or variable == prefix + "CONFIG":
                continue
            setting = self._by_option.get(variable.removeprefix(prefix).lower())
            if setting is None:
                warnings.append(
                    f"environment variable {variable} is not an option of {self.program}"
                )
                continue
            values[setting.field] = _convert(setting.kind.parse, text, variable, setting)
        return values

    def _read_config(self, path: str, warnings: list[str]) -> dict[str, Any]:
        import tomllib
        from pathlib import Path

        try:
            table = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise OptionError(f"failed to load config file {path} - {error}") from None
        values: dict[str, Any] = {}
        for option, value in table.items():
            setting = self._by_option.get(option)
            if setting is None:
                if option.replace("_", "-") not in self._ignored_names:
                    warnings.append(
                        f"config file {path}: {option} is not an option of {self.program}"
                    )
                continue
            place = f"{option} in {path}"
            values[setting.field] = _convert(setting.kind.convert, value, place, setting)
        return values

    def help(self) -> str:
        """Return the whole help text, grouped, in the order of the table."""
        lines = [f"Usage: {self.usage}", "", self.summary]
        group = ""
        for setting in self.settings:
            if setting.group != group:
                group = setting.group
                lines += ["", f"{group}:"]
            lines += self._help_lines(setting)
        lines += ["", "Also:"]
        for name, argument, text in COMMON:
            lines += [f"  -{name} {argument}".rstrip(), f"        {text}"]
        for name, text in self.ignored:
            lines += [f"  -{name}", f"        {text}"]
        if self.statuses:
            lines += ["", "Exit status:"]
            lines += [f"  {number}  {text}" for number, text in self.statuses]
        lines += [
            "",
            "Write flags as -flag=value, --flag=value or -flag value.  The command line overrides",
            f"the environment ({self.environment_prefix}<OPTION>), which overrides the file.",
        ]
        return "\n".join(lines) + "\n"

    def _help_lines(self, setting: Setting) -> list[str]:
        argument = "" if setting.kind.kind == "bool" else f" {setting.kind.kind}"
        default = setting.show_default()
        notes = [f"default {default}" if default else "default none"]
        if limits := setting.kind.limits():
            notes.append(limits)
        if isinstance(setting.kind, Listed):
            notes.append("may be repeated")
        if setting.own:
            notes.append("not in NSQ")
        text = f"{setting.help} ({'; '.join(notes)})"
        return [f"  -{setting.flag}{argument}", *_wrapped(text)]


def take_word(table: FlagTable[Any], arguments: Sequence[str]) -> tuple[str, Sequence[str]]:
    """The one argument that is not a flag, before or after the flags, and the others."""
    if arguments and not arguments[0].startswith("-"):
        return arguments[0], arguments[1:]
    flags = table.flags_of(arguments)
    remaining = arguments[len(flags) :]
    if not remaining or remaining[0].startswith("-"):
        return "", arguments
    return remaining[0], [*flags, *remaining[1:]]


def take_words(table: FlagTable[Any], arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The arguments that are not flags, anywhere between them, and the flags; none is of HELP."""
    words: list[str] = []
    flags: list[str] = []
    remaining = list(arguments)
    while remaining:
        taken = table.flags_of(remaining)
        flags += taken
        remaining = remaining[len(taken) :]
        if remaining[:1] == ["--"]:
            return [*words, *remaining[1:]], flags
        words += remaining[:1]
        remaining = remaining[1:]
    return words, flags


def _convert(convert: Callable[[Any], Any], value: object, place: str, setting: Setting) -> Any:
    try:
        return convert(value)
    except ValueError:
        raise OptionError(_refusal(value, f"{place} (flag -{setting.flag})", setting)) from None


def _wrapped(text: str) -> list[str]:
    import textwrap

    indent = " " * 8
    return textwrap.wrap(
        text, 96, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
    )


def _refusal(value: object, place: str, setting: Setting) -> str:
    return f'invalid value "{value}" for {place}: must be {setting.kind.allowed()}'
