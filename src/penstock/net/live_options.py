"""Options that can change while a daemon runs: with nsqd's PUT /config, and with SIGHUP.

    log_level                  takes effect at once
    nsqlookupd_tcp_addresses   connections are added and removed when the options are next polled

SIGHUP reads the config file and the environment again, with the precedence of a start.  Other
options that differ are logged: they need a restart.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from penstock.errors import OptionError
from penstock.net import log
from penstock.settings.daemon import LOG_LEVELS
from penstock.settings.table import Setting

LOGGER = logging.getLogger(__name__)

LIVE = ("log_level", "nsqlookupd_tcp_addresses")


class HasOptions(Protocol):
    options: Any


def parse(option: str, text: bytes) -> object:
    """Parse the value that PUT /config gives a live option; raises ValueError."""
    if option == "log_level":
        level = text.decode("utf-8", "replace").lower()
        if level not in LOG_LEVELS:
            raise ValueError(level)
        return level
    try:
        addresses = json.loads(text)
    except RecursionError:
        raise ValueError("too deep") from None
    if not isinstance(addresses, list) or not all(isinstance(a, str) for a in addresses):
        raise ValueError(addresses)
    return tuple(addresses)


def change(broker: HasOptions, option: str, value: object) -> None:
    """Set a live option until the process ends."""
    assert option in LIVE
    changes: dict[str, Any] = {option: value}
    broker.options = dataclasses.replace(broker.options, **changes)
    if option == "log_level":
        log.set_level(broker.options.log_level)


def reload(broker: HasOptions, read: Callable[[], object], settings: Sequence[Setting]) -> None:
    """Apply the live options that ``read`` returns, and log the others that differ."""
    try:
        options = read()
    except (OptionError, OSError) as error:
        LOGGER.error("SIGHUP: nothing changed: %s", error)
        return
    for setting in settings:
        new = getattr(options, setting.field)
        if new == getattr(broker.options, setting.field):
            continue
        if setting.option in LIVE:
            change(broker, setting.option, new)
            LOGGER.info("SIGHUP: %s is %s now", setting.option, setting.kind.show(new))
        else:
            LOGGER.warning("SIGHUP: %s needs a restart", setting.option)
