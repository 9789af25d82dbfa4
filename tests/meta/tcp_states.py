"""The states of a client's TCP connection to nsqd: what each command is answered in each of them.

The code has these states in several flags (`nsqd/client.pyx`, `upgrade.py`, `core/scanner.pyx`).
docs/connections.md shows this table, and
tests/conformance/test_tcp_states.py holds it against a real nsqd.

A reply that begins with ``E_`` is an error frame, every other one a response; ``...`` stands for
text that depends on settings, and an empty reply for none.  Commands are proper ones: what is wrong
with a command itself (a name, a size, a number of parameters) is answered the same in all states.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

STATES = {
    "MAGIC": "connected; the magic, `V2` after two spaces, has not been received",
    "TLS_REQUIRED": "nsqd has `--tls-required`, and the connection is not encrypted yet",
    "AUTH_REQUIRED": "nsqd has `--auth-http-address`, and the client has not sent AUTH yet",
    "INIT": "publishes, and may subscribe (`state` 0 in `/stats`)",
    "AUTHORIZED": "as INIT, for what the auth server allows",
    "UPGRADING": "IDENTIFY agreed on TLS, and the handshake is under way",
    "SUBSCRIBED": "receives messages of a channel, as far as RDY allows (`state` 3)",
    "CLOSING": "after CLS: finishes what is in flight, receives nothing new (`state` 4)",
    "ENDING": "the client closed its side: what it sent is executed, its replies go out",
    "LINGERING": "an error ended it: our side is closed, what still comes is read and dropped",
    "CLOSED": "gone; messages in flight are requeued",
}


class Row(NamedTuple):
    state: str
    event: str
    reply: str
    after: str


ANSWERS = ("FIN", "REQ", "TOUCH")
PUBLISHES = ("PUB", "MPUB", "DPUB")
# Everything a client may send once it has greeted.
COMMANDS = (
    *("IDENTIFY", "IDENTIFY, TLS", "AUTH", "SUB", "RDY", *ANSWERS, "CLS", "NOP", *PUBLISHES),
    *("unknown command", "line of 16 KiB"),
)
GREETED = ("TLS_REQUIRED", "AUTH_REQUIRED", "INIT", "AUTHORIZED", "SUBSCRIBED", "CLOSING")


def _invalid(state: str, *commands: str, why: str = "") -> Iterator[Row]:
    for command in commands:
        name = {"unknown command": "WAT"}.get(command, command.partition(",")[0])
        yield Row(state, command, f"E_INVALID cannot {name} in current state{why}", "LINGERING")


def _always(state: str) -> Iterator[Row]:
    """What is the same in every state that takes commands."""
    yield Row(state, "line of 16 KiB", "", "LINGERING")
    yield Row(state, "end of stream", "", "CLOSED" if state == "MAGIC" else "ENDING")
    yield Row(state, "end of stream in a body", "E_BAD_...", "LINGERING")
    yield Row(state, "silent for two heartbeats", "", "CLOSED")
    yield Row(state, "takes no output for a while", "", "CLOSED")


def _magic() -> Iterator[Row]:
    yield Row("MAGIC", "magic, with --tls-required", "", "TLS_REQUIRED")
    yield Row("MAGIC", "magic, with --auth-http-address", "", "AUTH_REQUIRED")
    yield Row("MAGIC", "magic", "", "INIT")
    yield Row("MAGIC", "anything else", "E_BAD_PROTOCOL", "LINGERING")
    yield Row("MAGIC", "end of stream", "", "CLOSED")
    yield Row("MAGIC", "no magic for 10 s", "", "CLOSED")


def _tls_required() -> Iterator[Row]:
    state = "TLS_REQUIRED"
    yield Row(state, "IDENTIFY", "OK", state)
    yield Row(state, "IDENTIFY, TLS", "{...}", "UPGRADING")
    others = [c for c in COMMANDS if not c.startswith(("IDENTIFY", "line"))]
    yield from _invalid(state, *others, why=" (TLS required)")
    yield from _always(state)


def _auth_required() -> Iterator[Row]:
    state = "AUTH_REQUIRED"
    yield Row(state, "IDENTIFY", "OK", state)
    yield Row(state, "IDENTIFY, TLS", "{...}", "UPGRADING")
    yield Row(state, "AUTH", "{...}", "AUTHORIZED")
    yield Row(state, "AUTH, refused", "E_AUTH_FAILED AUTH failed", "LINGERING")
    for command in ("SUB", *PUBLISHES):
        reply = f"E_AUTH_FIRST AUTH required before {command}"
        yield Row(state, command, reply, "LINGERING")
    yield from _before_sub(state)


def _init() -> Iterator[Row]:
    state = "INIT"
    yield Row(state, "IDENTIFY", "OK", state)
    yield Row(state, "IDENTIFY, TLS", "{...}", "UPGRADING")
    yield Row(state, "AUTH", "E_AUTH_DISABLED AUTH disabled", "LINGERING")
    yield Row(state, "SUB", "OK", "SUBSCRIBED")
    yield from (Row(state, command, "OK", state) for command in PUBLISHES)
    yield from _before_sub(state)


def _authorized() -> Iterator[Row]:
    state = "AUTHORIZED"
    yield Row(state, "IDENTIFY", "OK", state)
    yield Row(state, "IDENTIFY, TLS", "{...}", "UPGRADING")
    yield Row(state, "AUTH", "E_INVALID AUTH already set", "LINGERING")
    yield Row(state, "SUB", "OK", "SUBSCRIBED")
    yield from (Row(state, command, "OK", state) for command in PUBLISHES)
    for command, names in (("SUB", '"nope" "c"'), ("PUB", '"nope" ""')):
        reply = f"E_UNAUTHORIZED AUTH failed for {command} on {names}"
        yield Row(state, f"{command}, not allowed", reply, "LINGERING")
    yield from _before_sub(state)


def _before_sub(state: str) -> Iterator[Row]:
    yield Row(state, "IDENTIFY, TLS, over TLS", "{...}", state)
    yield Row(state, "NOP", "", state)
    yield from _invalid(state, "RDY", *ANSWERS, "CLS")
    yield Row(state, "unknown command", "E_INVALID invalid command WAT", "LINGERING")
    yield from _always(state)


def _upgrading() -> Iterator[Row]:
    state = "UPGRADING"
    for daemon, after in (
        ("", "INIT"),
        (", with --auth-http-address", "AUTH_REQUIRED"),
        (", of one that had sent AUTH", "AUTHORIZED"),
    ):
        yield Row(state, f"handshake done{daemon}", "OK", after)
    failed = "E_IDENTIFY_FAILED IDENTIFY failed ..."
    yield Row(state, "anything else", failed, "LINGERING")
    yield Row(state, "end of stream", failed, "CLOSED")
    yield Row(state, "no handshake for 5 s", failed, "LINGERING")


def _subscribed() -> Iterator[Row]:
    state = "SUBSCRIBED"
    yield Row(state, "RDY", "", state)
    yield Row(state, "CLS", "CLOSE_WAIT", "CLOSING")
    yield from _after_sub(state)
    yield Row(state, "the channel is deleted", "", "CLOSED")


def _closing() -> Iterator[Row]:
    state = "CLOSING"
    yield Row(state, "RDY", "", state)
    yield from _invalid(state, "CLS")
    yield from _after_sub(state)


def _after_sub(state: str) -> Iterator[Row]:
    yield from (Row(state, f"{command}, in flight", "", state) for command in ANSWERS)
    for command in ANSWERS:
        reply = f"E_{command}_FAILED {command} 0000000000000000 failed ID not in flight"
        yield Row(state, command, reply, state)
    yield Row(state, "NOP", "", state)
    yield from (Row(state, command, "OK", state) for command in PUBLISHES)
    yield from _invalid(state, "IDENTIFY", "IDENTIFY, TLS", "AUTH", "SUB")
    yield Row(state, "unknown command", "E_INVALID invalid command WAT", "LINGERING")
    yield from _always(state)


def _ends() -> Iterator[Row]:
    yield Row("ENDING", "all that was sent is executed and answered", "", "CLOSED")
    yield Row("LINGERING", "anything", "", "LINGERING")
    yield Row("LINGERING", "end of stream, or a second passed", "", "CLOSED")


TABLE = [
    *_magic(),
    *_tls_required(),
    *_auth_required(),
    *_init(),
    *_authorized(),
    *_upgrading(),
    *_subscribed(),
    *_closing(),
    *_ends(),
]


def row(state: str, event: str) -> Row:
    (found,) = (each for each in TABLE if (each.state, each.event) == (state, event))
    return found
