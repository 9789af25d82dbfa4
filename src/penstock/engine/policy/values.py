"""The value of a policy's key: from TOML or JSON, to JSON, and in the journal.

    a person, a file    "7d", 5, "10GB"    convert()
    an answer           "7d", 5, "10GB"    shown()    and convert() accepts it
    the journal         "7d", "5", "10GB"  stored(), restored()

The journal has texts, because a text survives a change of a key's kind.
"""

from __future__ import annotations

from typing import Any

from penstock.errors import PolicyError
from penstock.settings.kinds import Duration, Int, Size
from penstock.settings.policy import BY_KEY, NameKind
from penstock.settings.table import Setting
from penstock.wire.names import EPHEMERAL, NAME_SIZE_MAX, is_ephemeral, is_valid_name

# The longest valid value is a name.
TEXT_SIZE_MAX = 256
# Of a wrong value in an error text.
SHOWN_SIZE_MAX = 80


def setting_of(key: str) -> Setting:
    """The row of a key; raises PolicyError if there is none."""
    setting = BY_KEY.get(key)
    if setting is None:
        from difflib import get_close_matches

        close = get_close_matches(key[:SHOWN_SIZE_MAX], BY_KEY, n=1, cutoff=0.6)
        hint = f"; did you mean {close[0]}?" if close else f"; keys are {', '.join(BY_KEY)}"
        raise PolicyError("INVALID_KEY", key, f"{short(key)} is not a key of policies{hint}")
    return setting


def convert(setting: Setting, value: object) -> Any:
    """The value of a key from a JSON or TOML ``value``; raises PolicyError."""
    kind = setting.kind
    try:
        if isinstance(value, str) and len(value) > TEXT_SIZE_MAX:
            raise ValueError(value)
        if isinstance(kind, Duration) and isinstance(value, int) and value != 0:
            # In options an integer is milliseconds, as in NSQ; nobody would guess that here.
            raise ValueError(value)
        found = kind.convert(value)
    except ValueError:
        raise PolicyError("INVALID_VALUE", setting.option, refusal(setting, value)) from None
    if isinstance(kind, NameKind) and found and (not is_valid_name(found) or is_ephemeral(found)):
        text = (
            f"{setting.option} must be the name of a topic, 1 to {NAME_SIZE_MAX} letters, digits,"
            f" ., _ and -, without {EPHEMERAL}; it is {short(value)}"
        )
        raise PolicyError("INVALID_VALUE", setting.option, text)
    return found


def refusal(setting: Setting, value: object) -> str:
    unit = ", with a unit" * (isinstance(setting.kind, Duration) and isinstance(value, int))
    return f"{setting.option} must be {setting.kind.allowed()}{unit}; it is {short(value)}"


def short(value: object) -> str:
    """A wrong value in an error text."""
    if isinstance(value, (dict, list)):
        return "an object" if isinstance(value, dict) else "a list"
    if isinstance(value, int) and not -(10**30) < value < 10**30:
        return "a huge number"
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= SHOWN_SIZE_MAX else f"{text[:SHOWN_SIZE_MAX]}..."


def shown(setting: Setting, value: Any) -> str | int:
    """``value`` in JSON, as a person would set it."""
    if isinstance(setting.kind, Int) and not isinstance(setting.kind, Size):
        number: int = value
        return number
    return setting.kind.show(value)


def stored(setting: Setting, value: Any) -> str:
    """``value`` in the journal."""
    return setting.kind.show(value)


def restored(key: str, value: object) -> Any:
    """A journaled value; raises PolicyError for a key or value of another version."""
    return convert(setting_of(key), value)
