"""penstock.admin.results: what actions did, in words, until it is describe."""

from __future__ import annotations

from penstock.admin.actions import DaemonResult, Outcome
from penstock.admin.results import KEPT_COUNT_MAX, Result, Results, describe

PAUSE = {"action": "pause", "topic": "orders", "channel": "email"}


def test_what_everybody_did() -> None:
    outcome = Outcome([DaemonResult("a:1"), DaemonResult("b:1")])
    assert describe(PAUSE, outcome) == Result(
        True, "Paused channel email of topic orders on 2 daemons.", []
    )


def test_what_one_did() -> None:
    fields = {"action": "delete", "topic": "orders"}
    assert describe(fields, Outcome([DaemonResult("a:1")])).text == "Deleted topic orders on a:1."


def test_what_some_did_and_others_did_not() -> None:
    outcome = Outcome([DaemonResult("a:1"), DaemonResult("b:1", "long text", "short")], ["c: down"])
    result = describe(PAUSE, outcome)
    assert not result.done
    assert result.text == "Paused channel email of topic orders on a:1, but failed on others:"
    assert result.failures == ["b:1: short", "c: down"]


def test_what_nobody_did() -> None:
    result = describe(PAUSE, Outcome([DaemonResult("a:1", "refused")]))
    assert (result.done, result.failures) == (False, ["a:1: refused"])
    assert describe(PAUSE, Outcome()).failures == ["not found on any node"]


def test_results_are_kept_for_a_while_and_no_longer() -> None:
    results = Results()
    keys = [results.keep(Result(True, str(n))) for n in range(KEPT_COUNT_MAX + 1)]
    assert len(set(keys)) == len(keys)
    assert results.find(keys[0]) is None
    newest = results.find(keys[-1])
    assert newest is not None and newest.text == str(KEPT_COUNT_MAX)
    assert results.find("guess") is None
