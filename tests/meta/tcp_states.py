"""The states of a client's TCP connection to nsqd, and the reply to each command in each state.

`Phase` of nsqd/client.pyx has these states, with one phase, OPEN, for those between which only the
reply to a command differs: there the scanner and the permit decide.  docs/connections.md shows this
table, tests/conformance/test_tcp_states.py checks it against a real nsqd, and
tests/meta/test_connections.py compares it with the table by which the code changes its phase.

A reply that begins with ``E_`` is an error frame, every other one a response; ``...`` stands for
text that depends on settings.  An empty reply means that nothing is sent.  Commands are valid ones:
a mistake in a command itself (a name, a size, a number of parameters) gets the same error in all
states.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

STATES = {
    "MAGIC": "connected; the magic, `V2` after two spaces, has not been received",
    "TLS_REQUIRED": "nsqd has `--tls-required`, and the connection is not encrypted yet",
    "AUTH_REQUIRED": "nsqd has `--auth-http-address`, and the client has not sent AUTH yet",
    "INIT": "may publish and subscribe (`state` 0 in `/stats`)",
    "AUTHORIZED": "may publish and subscribe as far as the auth server allows",
    "UPGRADING": "IDENTIFY agreed on TLS, and the handshake is under way",
    "SUBSCRIBED": "receives messages of a channel, as far as RDY allows (`state` 3)",
    "CLOSING": "after CLS: finishes what is in flight, receives nothing new (`state` 4)",
    "ENDING": "the client closed its side: nsqd executes what it sent and sends the replies",
    "FINISHING": "nothing more is executed; what is written is sent, then the socket is closed",
    "LINGERING": "nsqd closed its side, usually after an error; further input is dropped",
    "CLOSED": "the socket is closed; messages in flight are requeued",
}


class Row(NamedTuple):
    state: str
    event: str
    reply: str
    after: str


ANSWERS = ("FIN", "REQ", "TOUCH")
PUBLISHES = ("PUB", "MPUB", "DPUB")
GUARDED = ", with --auth-http-address"
# Everything a client may send after the magic.
COMMANDS = (
    *("IDENTIFY", "IDENTIFY, TLS", "AUTH", "SUB", "RDY", *ANSWERS, "CLS", "NOP", *PUBLISHES),
    *("unknown command", "line of 16 KiB"),
)
UNREAD = "the client does not read its output in time"
GREETED = ("TLS_REQUIRED", "AUTH_REQUIRED", "INIT", "AUTHORIZED", "SUBSCRIBED", "CLOSING")


def _invalid(state: str, *commands: str, why: str = "") -> Iterator[Row]:
    for command in commands:
        name = {"unknown command": "WAT"}.get(command, command.partition(",")[0])
        yield Row(state, command, f"E_INVALID cannot {name} in current state{why}", "LINGERING")


def _always(state: str) -> Iterator[Row]:
    """Rows that are the same in every state in which commands are read."""
    yield Row(state, "line of 16 KiB", "", "LINGERING")
    yield Row(state, "end of stream", "", "ENDING")
    yield Row(state, "end of stream in a body", "E_BAD_...", "CLOSED")
    yield Row(state, "a body does not arrive in time", "E_BAD_...", "LINGERING")
    if state in ("TLS_REQUIRED", "AUTH_REQUIRED", "INIT"):
        yield Row(state, "no first command for 10 s", "", "CLOSED")
    yield Row(state, "no command for two heartbeat intervals", "", "CLOSED")
    yield Row(state, UNREAD, "", "CLOSED")


def _magic() -> Iterator[Row]:
    yield Row("MAGIC", "magic, with --tls-required", "", "TLS_REQUIRED")
    yield Row("MAGIC", f"magic{GUARDED}", "", "AUTH_REQUIRED")
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
    nothing = "E_UNAUTHORIZED AUTH no authorizations found"
    yield Row(state, "AUTH, nothing is allowed", nothing, "LINGERING")
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
    reply = 'E_UNAUTHORIZED AUTH failed for SUB on "nope" "c"'
    yield Row(state, "SUB, not allowed", reply, "LINGERING")
    yield from _forbidden(state)
    yield from _before_sub(state)


def _forbidden(state: str) -> Iterator[Row]:
    """What the auth server does not allow, or allows no longer when nsqd asks again."""
    where = "" if state == "AUTHORIZED" else GUARDED
    for command in PUBLISHES:
        reply = f'E_UNAUTHORIZED AUTH failed for {command} on "nope" ""'
        yield Row(state, f"{command}, not allowed{where}", reply, "LINGERING")
    again = "SUB or publish" if state == "AUTHORIZED" else "publish"
    event = f"{again}, refused after the TTL{where}"
    yield Row(state, event, "E_AUTH_FAILED AUTH failed", "LINGERING")


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
        (GUARDED, "AUTH_REQUIRED"),
        (", AUTH was sent before", "AUTHORIZED"),
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
    yield Row(state, "BURY, in flight, if IDENTIFY offered it", "", state)
    reply = "E_BURY_FAILED BURY 0000000000000000 failed ID not in flight"
    yield Row(state, "BURY, if IDENTIFY offered it", reply, state)
    yield Row(state, "NOP", "", state)
    yield from (Row(state, command, "OK", state) for command in PUBLISHES)
    yield from _forbidden(state)
    yield from _invalid(state, "IDENTIFY", "IDENTIFY, TLS", "AUTH", "SUB")
    yield Row(state, "unknown command", "E_INVALID invalid command WAT", "LINGERING")
    yield Row(state, "the channel is deleted", "", "LINGERING")
    yield from _always(state)


def _ends() -> Iterator[Row]:
    yield Row("ENDING", "all commands are executed and answered", "", "FINISHING")
    yield Row("ENDING", "a fatal error", "E_...", "FINISHING")
    yield Row("ENDING", UNREAD, "", "CLOSED")
    yield Row("FINISHING", "all is sent", "", "CLOSED")
    yield Row("FINISHING", UNREAD, "", "CLOSED")
    yield Row("LINGERING", "anything", "", "LINGERING")
    yield Row("LINGERING", "end of stream, and not all is sent", "", "FINISHING")
    yield Row("LINGERING", "end of stream, or 1 s has passed", "", "CLOSED")


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
