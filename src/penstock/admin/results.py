"""The results of actions, kept for the page that is shown next.

The response to a form is a redirect, so that reloading the page does not repeat the action; the
page it leads to reads the result from here.  Only the newest results are kept.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.admin.actions import Outcome

KEPT_COUNT_MAX = 256
# Nodes whose results are in the text.
SHOWN_COUNT_MAX = 20

_DONE = {
    "create": "Created",
    "pause": "Paused",
    "unpause": "Unpaused",
    "empty": "Emptied",
    "delete": "Deleted",
    "tombstone": "Tombstoned",
    "publish": "Published a message to",
    "clear": "Cleared",
    "forget": "Deleted",
    "policy": "Changed the policy of",
    "seek": "Moved the position of",
    "drain": "Draining",
    "undrain": "Cancelled the drain of",
    "kick": "Kicked messages of",
    "move": "Moved messages of",
    "discard": "Discarded messages of",
    "stop": "Stopped for",
}


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one action, formatted for people."""

    done: bool
    text: str
    failures: list[str] = field(default_factory=list)


class Results:
    """The last KEPT_COUNT_MAX results, by keys that cannot be guessed."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, Result] = OrderedDict()

    def keep(self, result: Result) -> str:
        key = secrets.token_urlsafe(12)
        self._kept[key] = result
        while len(self._kept) > KEPT_COUNT_MAX:
            self._kept.popitem(last=False)
        return key

    def find(self, key: str) -> Result | None:
        return self._kept.get(key)


def describe(fields: Mapping[str, str], outcome: Outcome) -> Result:
    """An outcome for people: the action, where it was done, and the failures."""
    topic, channel = fields.get("topic", ""), fields.get("channel", "")
    what = f"channel {channel} of topic {topic}" if channel else f"topic {topic}"
    if fields.get("action") == "clear":
        what = "the damage records"
    if fields.get("action") in ("drain", "undrain"):
        what = "the node"
    if fields.get("action") == "forget":
        what = f"the pattern of channel {channel}"
    failed = [result for result in outcome.results if result.error]
    done = [result for result in outcome.results if not result.error]
    failures = [
        f"{result.daemon}: {result.text + ', then ' if result.text else ''}"
        f"{result.short or result.error}"
        for result in failed
    ]
    failures += outcome.failures
    text = f"{_DONE.get(fields.get('action', ''), 'Done:')} {what}"
    if not done and any(result.text for result in failed):
        return Result(False, f"{text}, but not all:", failures)
    if not done:
        return Result(False, f"Nothing was changed: {what}.", failures or ["not found on any node"])
    text += f" on {done[0].daemon}" if len(done) == 1 else f" on {len(done)} daemons"
    shown = [f"{result.daemon}: {result.text}" for result in done if result.text]
    if shown:
        text += f" ({'; '.join(shown[:SHOWN_COUNT_MAX])}{'; ...' * (len(shown) > SHOWN_COUNT_MAX)})"
    return Result(
        not failures, f"{text}, but failed on others:" if failures else f"{text}.", failures
    )
