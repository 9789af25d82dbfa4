"""The states of an HTTP connection, and the events that lead from one to the next.

Requests are read while earlier ones are answered, so a connection has a state in each of five
groups.  The connection (http_connection.py) has its life, its input and its output, the reader
(http_reader.py) has the request, and a file that is being sent (http_file.py) has its own.

Rule 1: ``TABLE[state][event]`` is the only way to change a state.
Rule 2: an event that a state's row does not have is a mistake of ours, never of a peer: KeyError.
Rule 3: docs/connections.md shows this table (tests/meta/connections.py draws it), and the values of
        ``State`` and ``Event`` are the meanings that it shows.

A request whose head is known (http_heads.py) is read in one step and leaves the request IDLE.
"""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    # The connection's life.
    CONNECTING = "accepted; over TLS, the handshake is under way"
    OPEN = "requests are read and answered"
    HALF_CLOSED = "the peer sends no more; what it sent is answered, then the connection closes"
    DRAINING = "the server stops: what has been received is answered, then the connection closes"
    LINGERING = "our side is closed; what the peer still sends is read and dropped"
    CLOSING = "what is written goes out, then the socket closes"
    CLOSED = "the socket is closed"
    # What the peer is sending.
    IDLE = "nothing, or the next request has not begun"
    HEAD = "a request's head"
    BODY = "a request's body"
    EXPECTING = "nothing: it waits for 100 Continue before it sends the body"
    ENDED = "nothing that will be read: its last request is read or refused"
    # Whether the socket is read.
    READING = "the socket is read"
    PAUSED = "not read until the requests that were read have begun"
    HELD = "not read until the budget for bodies has room (body_budget.py)"
    # What happens to answers.
    CLEAR = "written at once"
    BLOCKED = "the peer does not read: answers are written, no further request begins"
    SENDING = "a file is being sent; the next answer waits for it"
    SENDING_LAST = "a file is being sent; the connection closes after it"
    # A file that is being sent.
    READY = "written to the socket now"
    WATCHING = "waits until the socket accepts more"
    FETCHING = "waits until the next bytes are in the page cache"
    SENT = "all is sent, or it failed, or the connection is lost"


class Event(StrEnum):
    CONNECTED = "connection_made"
    EOF = "the peer closed its side"
    DRAIN = "the server stops"
    CLOSE = "all is answered and the connection is not kept, or a timeout passed"
    LINGER = "the last answer is written and the request for it was not read to its end"
    LOST = "connection_lost"
    BEGIN = "the first byte of a request"
    HEAD_READ = "the head is read and valid"
    EXPECT = "the head has Expect: 100-continue"
    CONTINUE = "100 Continue is sent, or the body comes without it"
    READ = "the request is read"
    LAST = "the request, or its answer, is the last: the connection is not kept, or it is refused"
    FULL = "more has been read than may begin"
    EMPTIED = "all that was read has begun"
    HOLD = "the budget for bodies is exhausted"
    RELEASE = "the budget has room again, or has dropped the body"
    BLOCK = "pause_writing"
    UNBLOCK = "resume_writing"
    SEND_FILE = "the answer is a part of a file"
    FILE_SENT = "the file is sent, or failed; for its own state also: the connection is lost"
    SOCKET_FULL = "the socket is full, or one turn may send no more"
    NOT_CACHED = "the next bytes are not in the page cache"
    FETCHED = "5 ms have passed since the read-ahead"


_S, _E = State, Event
_ENDS = {_E.CLOSE: _S.CLOSING, _E.LINGER: _S.LINGERING, _E.LOST: _S.CLOSED}
_READ = {_E.READ: _S.IDLE, _E.LAST: _S.ENDED}

TABLE: dict[State, dict[Event, State]] = {
    _S.CONNECTING: {_E.CONNECTED: _S.OPEN},
    _S.OPEN: {_E.EOF: _S.HALF_CLOSED, _E.DRAIN: _S.DRAINING, **_ENDS},
    _S.HALF_CLOSED: {_E.DRAIN: _S.DRAINING, **_ENDS},
    _S.DRAINING: {_E.EOF: _S.DRAINING, **_ENDS},
    _S.LINGERING: {_E.EOF: _S.LINGERING, _E.LOST: _S.CLOSED},
    _S.CLOSING: {_E.EOF: _S.CLOSING, _E.LOST: _S.CLOSED},
    _S.CLOSED: {},
    _S.IDLE: {_E.BEGIN: _S.HEAD, _E.LAST: _S.ENDED},
    _S.HEAD: {_E.HEAD_READ: _S.BODY, _E.LAST: _S.ENDED},
    _S.BODY: {_E.EXPECT: _S.EXPECTING, **_READ},
    _S.EXPECTING: {_E.CONTINUE: _S.BODY, **_READ},
    _S.ENDED: {},
    _S.READING: {_E.FULL: _S.PAUSED, _E.HOLD: _S.HELD},
    _S.PAUSED: {_E.EMPTIED: _S.READING, _E.HOLD: _S.HELD, _E.LINGER: _S.READING},
    _S.HELD: {_E.RELEASE: _S.PAUSED, _E.LINGER: _S.READING},
    _S.CLEAR: {_E.BLOCK: _S.BLOCKED, _E.SEND_FILE: _S.SENDING, _E.LOST: _S.CLEAR},
    _S.BLOCKED: {_E.UNBLOCK: _S.CLEAR, _E.LOST: _S.CLEAR},
    _S.SENDING: {_E.LAST: _S.SENDING_LAST, _E.FILE_SENT: _S.CLEAR, _E.LOST: _S.CLEAR},
    _S.SENDING_LAST: {_E.FILE_SENT: _S.CLEAR, _E.LOST: _S.CLEAR},
    _S.READY: {_E.SOCKET_FULL: _S.WATCHING, _E.NOT_CACHED: _S.FETCHING, _E.FILE_SENT: _S.SENT},
    _S.WATCHING: {_E.NOT_CACHED: _S.FETCHING, _E.FILE_SENT: _S.SENT},
    _S.FETCHING: {_E.FETCHED: _S.READY, _E.FILE_SENT: _S.SENT},
    _S.SENT: {},
}

# Tuples, because a state is found at the front of one by identity.
SERVING = (_S.OPEN, _S.HALF_CLOSED, _S.DRAINING)
BETWEEN = (_S.IDLE, _S.ENDED)
IN_BODY = (_S.BODY, _S.EXPECTING)
NO_FILE = (_S.CLEAR, _S.BLOCKED)
