"""The command scanner: every command in every state, and every text nsqd answers with.

Numbers in brackets are rows of the captured exchanges with nsqd.
"""

from __future__ import annotations

import pytest

from tests.support.bodies import sized
from tests.support.scanners import NOW_NS, STATES, WALL_NS, Peer, id_of, multi

# A valid example of every command.
EXAMPLES = {
    "IDENTIFY": b"IDENTIFY\n" + sized(b"{}"),
    "AUTH": b"AUTH\n" + sized(b"secret"),
    "SUB": b"SUB t1 c\n",
    "RDY": b"RDY 5\n",
    "FIN": b"FIN " + id_of(0) + b"\n",
    "REQ": b"REQ " + id_of(0) + b" 0\n",
    "TOUCH": b"TOUCH " + id_of(0) + b"\n",
    "CLS": b"CLS\n",
    "NOP": b"NOP\n",
    "PUB": b"PUB t1\n" + sized(b"hello"),
    "MPUB": b"MPUB t1\n" + multi(b"a", b"bb"),
    "DPUB": b"DPUB t1 250\n" + sized(b"d"),
}
ALLOWED = {
    "init": {"IDENTIFY", "AUTH", "SUB", "PUB", "MPUB", "DPUB", "NOP"},
    "subscribed": {"RDY", "FIN", "REQ", "TOUCH", "CLS", "PUB", "MPUB", "DPUB", "NOP"},
    "closing": {"RDY", "FIN", "REQ", "TOUCH", "PUB", "MPUB", "DPUB", "NOP"},
}
# What is left to Python of a valid command; the others run in the core.
GIVEN = {
    "IDENTIFY": ("IDENTIFY", b"{}"),
    "AUTH": ("AUTH", b"secret"),
    "SUB": ("SUB", [b"t1", b"c"]),
    "CLS": ("CLS",),
    "DPUB": ("DPUB", "t1", 250, b"d"),
}
EVERY_COMMAND_IN_EVERY_STATE = [(state, name) for state in STATES for name in EXAMPLES]


@pytest.mark.parametrize(("state", "name"), EVERY_COMMAND_IN_EVERY_STATE)
def test_a_command_runs_in_its_states_and_is_fatal_in_others(state: str, name: str) -> None:
    """S4-8; rows 26 and 30."""
    peer = Peer(state)
    results = peer.send(EXAMPLES[name])
    if name in ALLOWED[state]:
        assert results == ([GIVEN[name]] if name in GIVEN else [])
        assert peer.open and peer.scanner.buffered_size == 0 and peer.scanner.progressed
    else:
        assert results == [f"E_INVALID cannot {name} in current state"]
        assert not peer.open


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_no_command_is_known_in_lower_case_or_with_a_space_before(state: str, name: str) -> None:
    for line in (EXAMPLES[name].lower(), b" " + EXAMPLES[name]):
        word = line.split(b"\n")[0].split(b" ")[0].decode()
        assert Peer(state).send(line) == [f"E_INVALID invalid command {word}"]


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize(
    ("line", "word"),
    [
        (b"FOO bar\n", "FOO"),  # [24]
        (b"\n", ""),  # [25] with a space at its end
        (b"\r\n", ""),
        (b" \n", ""),
        (b"NOPE\n", "NOPE"),
        (b"NOP\r\r\n", "NOP\r"),
        (b"  V2NOP\n", ""),
        (b"\xff\xfe\n", "\udcff\udcfe"),
        ("grüße\n".encode(), "grüße"),
        (b"PU\x00B t1\n", "PU\x00B"),
    ],
)
def test_anything_else_is_an_invalid_command(state: str, line: bytes, word: str) -> None:
    assert Peer(state).send(line) == [f"E_INVALID invalid command {word}"]


@pytest.mark.parametrize(("state", "name"), EVERY_COMMAND_IN_EVERY_STATE)
def test_one_carriage_return_before_the_line_feed_is_dropped(state: str, name: str) -> None:
    """Row 10."""
    example = EXAMPLES[name]
    assert Peer(state).send(example.replace(b"\n", b"\r\n", 1)) == Peer(state).send(example)


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("name", sorted(set(EXAMPLES) - {"AUTH", "RDY"}))
def test_surplus_parameters_are_ignored(state: str, name: str) -> None:
    """Row 10.  AUTH takes none, and RDY's first would be its count."""
    example = EXAMPLES[name]
    peer, plain = Peer(state), Peer(state)
    surplus = example.replace(b"\n", b" a b  c d e f\n", 1)
    if name == "SUB":
        surplus = b"SUB t1 c x y z\n"
    assert peer.send(surplus) == plain.send(example)
    assert peer.published() == plain.published() and peer.owed() == plain.owed()
    assert peer.window_state() == plain.window_state()


# ---- IDENTIFY, AUTH, SUB


def test_auth_takes_no_parameters() -> None:
    for line in (b"AUTH x\n", b"AUTH \n"):
        assert Peer().send(line) == ["E_INVALID AUTH invalid number of parameters"]
        for state in ("subscribed", "closing"):
            assert Peer(state).send(line) == ["E_INVALID cannot AUTH in current state"]


@pytest.mark.parametrize("name", ["IDENTIFY", "AUTH"])
def test_sizes_of_identify_and_auth_are_checked_when_declared(name: str) -> None:
    """Row 4; the limit itself is allowed."""
    line = name.encode() + b"\n"
    limits = {"body_size_max": 100}
    for size in (0, -1, -(2**31)):
        declared = size.to_bytes(4, "big", signed=True)
        assert Peer(**limits).send(line + declared) == [
            f"E_BAD_BODY {name} invalid body size {size}"
        ]
    for size in (101, 2**31 - 1):
        declared = size.to_bytes(4, "big")
        assert Peer(**limits).send(line + declared) == [
            f"E_BAD_BODY {name} body too big {size} > 100"
        ]
    assert Peer(**limits).send(line + sized(bytes(100))) == [(name, bytes(100))]
    assert Peer(**limits).send(line + sized(b"x")) == [(name, b"x")]


@pytest.mark.parametrize(("name", "size_max"), [("IDENTIFY", 65536), ("AUTH", 8192)])
def test_identify_and_auth_have_limits_of_their_own(name: str, size_max: int) -> None:
    """Beyond --max-body-size too the text is nsqd's."""
    line = name.encode() + b"\n"
    assert Peer().send(line + sized(bytes(size_max))) == [(name, bytes(size_max))]
    for size, limit in ((size_max + 1, size_max), (5_242_880, size_max), (5_242_881, 5_242_880)):
        declared = size.to_bytes(4, "big")
        assert Peer().send(line + declared) == [f"E_BAD_BODY {name} body too big {size} > {limit}"]


@pytest.mark.parametrize(
    ("line", "params"),
    [
        (b"SUB\n", []),
        (b"SUB t\n", [b"t"]),
        (b"SUB \n", [b""]),
        (b"SUB  c\n", [b"", b"c"]),
        (b"SUB t$ \xff\n", [b"t$", b"\xff"]),
        (b"SUB t c\n", [b"t", b"c"]),
    ],
)
def test_sub_hands_on_its_parameters_unjudged(line: bytes, params: list[bytes]) -> None:
    """Whether heartbeats are on is judged before them, in Python."""
    assert Peer().send(line) == [("SUB", params)]


# ---- PUB, DPUB, MPUB


def test_publishes_become_frames_and_owed_replies() -> None:
    """Rows 9, 15, 21 and 41."""
    for state in STATES:
        peer = Peer(state)
        peer.send(
            EXAMPLES["PUB"] + EXAMPLES["PUB"] + EXAMPLES["MPUB"] + b"DPUB t1 0\n" + sized(b"z")
        )
        assert peer.owed() == [("t1", "PUB", 2), ("t1", "MPUB", 1), ("t1", "DPUB", 1)]
        (ticket,) = peer.tickets
        ticket.settle()
        assert peer.settled_tickets == [ticket] * 3
        assert peer.scanner.pub_counts == {"t1": 5}
        assert peer.published() == {"t1": [b"hello", b"hello", b"a", b"bb", b"z"]}


@pytest.mark.parametrize("name", ["PUB", "DPUB", "MPUB"])
def test_publishing_needs_its_parameters(name: str) -> None:
    """Row 14."""
    lines = [name.encode()] + ([b"DPUB t1"] if name == "DPUB" else [])
    for line in lines:
        assert Peer().send(line + b"\n") == [f"E_INVALID {name} insufficient number of parameters"]


BAD_NAMES = [b"", b"bad$", b"b@d", b"\xff", b"#ephemeral", b"a#ephemera", b"a#ephemeral#ephemeral"]
BAD_NAMES += [b"x" * 65, b"x" * 55 + b"#ephemeral", b"a\tb", b"a\r"]
GOOD_NAMES = [b"t", b"x" * 64, b"x" * 54 + b"#ephemeral", b"a#ephemeral", b".-_azAZ09"]
LINE_ENDS = {"PUB": b"\n", "DPUB": b" 5\n", "MPUB": b"\n"}


@pytest.mark.parametrize("name", LINE_ENDS)
@pytest.mark.parametrize("topic", BAD_NAMES)
def test_a_bad_topic_name_is_told_as_bytes(name: str, topic: bytes) -> None:
    """Rows 13 and 17.  MPUB says the code twice."""
    end = b"\r\n" if topic.endswith(b"\r") and name != "DPUB" else LINE_ENDS[name]
    said = f"{'E_BAD_TOPIC ' if name == 'MPUB' else ''}{name} topic name"
    expected = [("BAD_NAME", "E_BAD_TOPIC", said, topic)]
    assert Peer().send(name.encode() + b" " + topic + end) == expected


@pytest.mark.parametrize("name", LINE_ENDS)
@pytest.mark.parametrize("topic", GOOD_NAMES)
def test_an_unknown_topic_is_asked_for_and_then_the_command_runs(name: str, topic: bytes) -> None:
    body = multi(b"a") if name == "MPUB" else sized(b"a")
    peer = Peer(topics=())
    results = peer.send(name.encode() + b" " + topic + LINE_ENDS[name] + body)
    assert results[0] == ("TOPIC", name, topic.decode())
    if name == "DPUB":
        assert results[1:] == [("DPUB", topic.decode(), 5, b"a")]
    else:
        assert results[1:] == [] and peer.published() == {topic.decode(): [b"a"]}


def test_mpub_asks_for_its_topic_before_its_body_and_pub_after() -> None:
    """Auth is checked there, and MPUB creates its topic even if its body never comes."""
    assert Peer(topics=()).send(b"MPUB t\n") == [("TOPIC", "MPUB", "t")]
    for line in (b"PUB t\n", b"DPUB t 0\n"):
        peer = Peer(topics=())
        assert peer.send(line, b"\x00\x00\x00\x02a") == []
        assert peer.send(b"b") == [("TOPIC", line.split(b" ")[0].decode(), "t")]


def test_a_topic_that_closed_is_asked_for_again() -> None:
    peer = Peer()
    peer.send(EXAMPLES["PUB"])
    peer.appenders.pop(b"t1").closed = True
    assert peer.send(EXAMPLES["PUB"]) == [("TOPIC", "PUB", "t1")]
    assert peer.published() == {"t1": [b"hello"]}
    assert peer.scanner.pub_counts == {"t1": 2}


@pytest.mark.parametrize("name", ["PUB", "DPUB"])
def test_message_sizes_are_checked_when_declared(name: str) -> None:
    """Rows 11 and 12; the limit itself is allowed."""
    line = name.encode() + b" t1 0\n"
    for size in (0, -1, -(2**31)):
        declared = size.to_bytes(4, "big", signed=True)
        expected = f"E_BAD_MESSAGE {name} invalid message body size {size}"
        assert Peer().send(line + declared) == [expected]
    for size in (1_048_577, 2**31 - 1):
        expected = f"E_BAD_MESSAGE {name} message too big {size} > 1048576"
        assert Peer().send(line + size.to_bytes(4, "big")) == [expected]
    for size in (1, 1_048_576):
        peer = Peer()
        assert peer.send(line + sized(b"m" * size)) == []
        assert peer.published() == {"t1": [b"m" * size]}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"-1", "could not parse timeout -1"),  # [22]
        (b"+1", "could not parse timeout +1"),
        (b"1.5", "could not parse timeout 1.5"),
        (b"0x1", "could not parse timeout 0x1"),
        (b"\xff", "could not parse timeout \udcff"),
        (b"3600001", "timeout 3600001 out of range 0-3600000"),  # [23]
        (b"18446744073709551615", "timeout 18446744073709551615 out of range 0-3600000"),
        (b"9" * 30, f"timeout {'9' * 30} out of range 0-3600000"),
        (b"18446744073709551616", "timeout 18446744073709551616 out of range 0-3600000"),
        (b"18446744073709551617", "timeout 18446744073709551617 out of range 0-3600000"),
    ],
)
def test_a_bad_delay_of_dpub_is_refused_before_its_body(text: bytes, expected: str) -> None:
    assert Peer().send(b"DPUB t1 " + text + b"\n") == [f"E_INVALID DPUB {expected}"]


@pytest.mark.parametrize(
    ("text", "delay_ms"),
    [
        (b"", 0),
        (b"0", 0),
        (b"000", 0),
        (b"0000000000000000000000000250", 250),
        (b"3600000", 3_600_000),
    ],
)
def test_a_delay_is_digits_and_the_empty_one_is_zero(text: bytes, delay_ms: int) -> None:
    peer = Peer()
    results = peer.send(b"DPUB t1 " + text + b"\n" + sized(b"d"))
    if delay_ms:
        assert results == [("DPUB", "t1", delay_ms, b"d")] and peer.published() == {}
        assert peer.owed() == [("deferred", "DPUB", 1)]
    else:
        assert results == [] and peer.published() == {"t1": [b"d"]}
    assert peer.scanner.pub_counts == {"t1": 1}


def be(*numbers: int) -> bytes:
    return b"".join(n.to_bytes(4, "big", signed=True) for n in numbers)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (be(0), "E_BAD_BODY MPUB invalid body size 0"),
        (be(-1), "E_BAD_BODY MPUB invalid body size -1"),
        (be(101), "E_BAD_BODY MPUB body too big 101 > 100"),
        (be(4, 0), "E_BAD_BODY MPUB invalid message count 0"),  # [16]
        (be(4, -7), "E_BAD_BODY MPUB invalid message count -7"),
        (be(100, 20), "E_BAD_BODY MPUB invalid message count 20"),  # (100 - 4) / 5 = 19
        (be(13, 2, 1) + b"a" + be(0), "E_BAD_MESSAGE MPUB invalid message(1) body size 0"),  # [18]
        (be(13, 2, -5), "E_BAD_MESSAGE MPUB invalid message(0) body size -5"),
        (be(90, 1, 51), "E_BAD_MESSAGE MPUB message too big 51 > 50"),
    ],
)
def test_a_bad_multi_body_is_refused_and_nothing_of_it_is_published(
    body: bytes, expected: str
) -> None:
    """S4-10"""
    peer = Peer(message_size_max=50, body_size_max=100)
    assert peer.send(b"MPUB t1\n" + body) == [expected]
    assert peer.published() == {} and peer.owed() == []


def test_multi_bodies_at_their_limits_are_published() -> None:
    limits = {"message_size_max": 50, "body_size_max": 100}
    for bodies in ([b"m" * 50], [b"m"] * 19, [b"m" * 50, b"m" * 38]):
        peer = Peer(**limits)
        assert peer.send(b"MPUB t1\n" + multi(*bodies)) == []
        assert peer.published() == {"t1": bodies}
        assert peer.scanner.pub_counts == {"t1": len(bodies)}


def test_a_multi_body_cannot_grow_past_the_limit_by_lying_about_its_size() -> None:
    """nsqd would buffer it; every buffer of ours is bounded."""
    peer = Peer(message_size_max=50, body_size_max=100)
    body = be(10, 3) + sized(b"m" * 50) + be(50)
    assert peer.send(b"MPUB t1\n" + body) == ["E_BAD_BODY MPUB body too big 108 > 100"]


def test_surplus_bytes_of_a_multi_body_are_the_next_line() -> None:
    """Rows 19 and 20: count and lengths drive the parsing, not the declared total."""
    peer = Peer()
    assert peer.send(b"MPUB t1\n" + be(11, 1, 1) + b"aZZ") == []
    assert peer.published() == {"t1": [b"a"]}
    assert peer.send(b"NOP\n") == ["E_INVALID invalid command ZZNOP"]
    peer = Peer()
    assert peer.send(b"MPUB t1\n" + be(1, 2, 1) + b"a" + be(1) + b"bNOP\n") == []
    assert peer.published() == {"t1": [b"a", b"b"]} and peer.scanner.buffered_size == 0


def test_two_spaces_make_an_empty_topic() -> None:
    assert Peer().send(b"PUB  t1\n") == [("BAD_NAME", "E_BAD_TOPIC", "PUB topic name", b"")]


# ---- order, replies


def test_commands_after_one_for_python_wait_for_the_next_call() -> None:
    """Scanner rule 5."""
    peer = Peer()
    peer.scanner.feed(b"IDENTIFY\n" + sized(b"{}") + EXAMPLES["PUB"] + b"SUB t1 c\nRDY 3\n")
    assert peer.scanner.next(NOW_NS, WALL_NS) == ("IDENTIFY", b"{}")
    assert peer.appenders[b"t1"].count == 0
    assert peer.scanner.next(NOW_NS, WALL_NS) == ("SUB", [b"t1", b"c"])
    assert peer.appenders[b"t1"].count == 1
    peer.subscribe()
    assert peer.scanner.next(NOW_NS, WALL_NS) is None
    assert peer.consumer.ready_count == 3


def test_commands_before_an_error_in_the_same_packet_run() -> None:
    peer = Peer("subscribed")
    results = peer.send(EXAMPLES["FIN"] + EXAMPLES["PUB"] + b"BAD\n" + EXAMPLES["PUB"])
    assert results == ["E_INVALID invalid command BAD"]
    assert peer.published() == {"t1": [b"hello"]} and peer.window_state()[0] is None


def test_owed_replies_are_settled_in_order() -> None:
    peer = Peer(topics=("a", "b"))
    for topic in (b"a", b"b", b"a"):
        peer.send(b"PUB " + topic + b"\n" + sized(b"x"))
    assert peer.owed() == [("a", "PUB", 1), ("b", "PUB", 1), ("a", "PUB", 1)]
    first, second = peer.tickets
    second.settle()
    assert peer.scanner.settle() == (0, None), "b's OK waits behind a's"
    first.settle()
    assert peer.scanner.settle() == (3, None) and peer.owed() == []
    assert peer.scanner.settle() == (0, None)
    assert peer.settled_tickets == [second, first, first]


def test_replies_for_the_next_batch_are_owed_apart() -> None:
    peer = Peer()
    peer.send(EXAMPLES["PUB"] * 3)
    peer.published()
    peer.send(EXAMPLES["PUB"] * 2)
    assert peer.owed() == [("t1", "PUB", 3), ("t1", "PUB", 2)]
    assert len(peer.tickets) == 2 and not peer.settled_tickets
    for ticket in peer.tickets:
        ticket.settle()
    assert peer.settled_tickets == peer.tickets


def test_pub_counts_are_kept_by_topic() -> None:
    peer = Peer(topics=("a", "b"))
    for topic in (b"a", b"a", b"b", b"a"):
        peer.send(b"MPUB " + topic + b"\n" + multi(b"x", b"y"))
        peer.send(b"DPUB " + topic + b" 9\n" + sized(b"x"))
    assert peer.scanner.pub_counts == {"a": 9, "b": 3}


def test_none_is_not_input() -> None:
    peer = Peer()
    with pytest.raises(TypeError):
        peer.scanner.feed(None)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        peer.scanner.feed_from(None, 0)  # type: ignore[arg-type]
    with pytest.raises(AssertionError):
        peer.scanner.feed_from(bytearray(4), 5)
    assert peer.send(b"NOP\n") == []


def test_bytes_and_a_shared_buffer_may_take_turns() -> None:
    """After an upgrade what is received comes as bytes, behind what came before it."""
    peer = Peer()
    command = EXAMPLES["PUB"] + EXAMPLES["MPUB"]
    for cut in range(len(command)):
        peer.scanner.feed(command[:cut])
        assert peer.scanner.next(NOW_NS, WALL_NS) is None
        assert peer.send(command[cut:] + command[:cut]) == []
        peer.scanner.feed(command[cut:])
        assert peer.scanner.next(NOW_NS, WALL_NS) is None and peer.scanner.buffered_size == 0
    assert peer.published() == {"t1": [b"hello", b"a", b"bb"] * 2 * len(command)}


def test_a_subscribed_scanner_without_a_window_is_our_own_mistake() -> None:
    for name in ("FIN", "REQ", "TOUCH", "RDY"):
        peer = Peer()
        peer.scanner.state = STATES["subscribed"]
        peer.scanner.feed(EXAMPLES[name])
        with pytest.raises(AssertionError):
            peer.scanner.next(NOW_NS, WALL_NS)
