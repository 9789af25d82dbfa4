"""docs/connections.md shows the tables of states as they are, and the tables are whole."""

from __future__ import annotations

from penstock.net.http_states import State
from penstock.nsqd.client import TRANSITIONS, Phase
from tests.meta.connections import diagram, drawings, shown
from tests.meta.tcp_states import COMMANDS, GREETED, STATES, TABLE


def test_the_page_shows_the_tables() -> None:
    assert shown() == drawings(), "run: python -m tests.meta.connections"


def test_the_page_names_every_state() -> None:
    text = "\n".join(shown().values())
    for name in (*State.__members__, *STATES):
        assert f"| `{name}` |" in text, name


def test_the_table_of_tcp_is_whole() -> None:
    assert {row.state for row in TABLE} | {"CLOSED"} == set(STATES)
    assert {row.after for row in TABLE} | {"MAGIC"} == set(STATES)
    pairs = [(row.state, row.event) for row in TABLE]
    assert len(pairs) == len(set(pairs))
    assert {(state, command) for state in GREETED for command in COMMANDS} <= set(pairs)


def test_a_fatal_error_leads_out_and_another_does_not() -> None:
    for row in TABLE:
        if row.reply.startswith("E_"):
            stays = row.reply.partition(" ")[0] in (
                "E_FIN_FAILED",
                "E_REQ_FAILED",
                "E_TOUCH_FAILED",
                "E_BURY_FAILED",
            )
            ends = ("LINGERING", "FINISHING", "CLOSED")
            assert row.after == row.state if stays else row.after in ends, row


def test_the_code_changes_states_as_the_table_of_tcp_says() -> None:
    def phase(state: str) -> str:
        return "OPEN" if state in GREETED else state

    arrows = {(phase(row.state), phase(row.after)) for row in TABLE}
    assert {(before, after) for before, after in arrows if before != after} == TRANSITIONS
    assert {phase(state) for state in STATES} == {each.name for each in Phase}


def test_a_diagram_joins_arrows_between_the_same_states() -> None:
    assert diagram("A", [("A", "x", "B"), ("A", "y", "B"), ("A", "x", "B")]).split("\n") == [
        "```mermaid",
        "stateDiagram-v2",
        "    [*] --> A",
        "    A --> B: x, y",
        "```",
    ]
