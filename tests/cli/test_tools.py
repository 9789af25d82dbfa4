"""Every tool as a process: normal use, wrong flags, hosts that are not there, SIGTERM."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest

from tests.cli.tools import PROGRAMS, Tool, finished, prepare, run_tool, source
from tests.support.bodies import numbered
from tests.support.daemon import Nsqd, Nsqlookupd
from tests.support.waits import eventually

NOWHERE = "127.0.0.1:1"
SOURCE = f"--nsqd-tcp-address={NOWHERE}"
LOOKUP = f"--lookupd-http-address={NOWHERE}"
STAT = ("--topic=t", "--channel=c")
POST = "--post=http://127.0.0.1:1/"

# program, flags, exit status, text
WRONG = [
    ("to_nsq", [SOURCE], 1, "--topic required"),
    ("to_nsq", ["--topic=t"], 1, "--nsqd-tcp-address required"),
    ("to_nsq", ["--topic=t", SOURCE, "--delimiter=ab"], 1, "--delimiter must be a single byte"),
    ("to_nsq", ["--topic=t", SOURCE, "--delimiter="], 1, "--delimiter must be a single byte"),
    ("to_nsq", ["--topic=t", SOURCE, "--producer-opt=no,1"], 2, "no,1"),
    ("to_nsq", ["--topic=a b", SOURCE], 1, "not a valid name"),
    ("nsq_tail", ["--topic=t"], 1, "--nsqd-tcp-address or --lookupd-http-address required"),
    (
        *("nsq_tail", ["--topic=t", SOURCE, LOOKUP], 1),
        "use --nsqd-tcp-address or --lookupd-http-address not both",
    ),
    ("nsq_tail", [SOURCE], 1, "--topic required"),
    ("nsq_tail", ["--topic=t", SOURCE, "--nope"], 2, "flag provided but not defined: -nope"),
    ("nsq_tail", ["--topic=t", SOURCE, "--consumer-opt=msg_timeout,x"], 2, "msg_timeout,x"),
    ("nsq_stat", ["--topic=t"], 1, "--topic and --channel are required"),
    ("nsq_stat", [*STAT], 1, "--nsqd-http-address or --lookupd-http-address required"),
    ("nsq_stat", [*STAT, LOOKUP, "--interval=-1s"], 1, "--interval should be positive"),
    (
        *("nsq_stat", [*STAT, "--nsqd-http-address=http://a:1"], 1),
        "--nsqd-http-address error - address should not contain scheme",
    ),
    ("nsq_to_file", ["--topic=t"], 1, "--nsqd-tcp-address or --lookupd-http-address required"),
    ("nsq_to_file", [SOURCE], 1, "--lookupd-http-address must be specified when no --topic"),
    (
        *("nsq_to_file", ["--topic=t", SOURCE, "--gzip", "--filename-format=<TOPIC>"], 1),
        "missing <REV> in --filename-format when gzip, rotation, or work dir enabled",
    ),
    ("nsq_to_file", ["--topic=t", SOURCE, "--gzip-level=10"], 2, "from 1 to 9"),
    ("nsq_to_file", ["--topic=t", SOURCE, "--consumer-opt=nope"], 2, "nope"),
    ("nsq_to_file", [LOOKUP, "--topic-pattern=("], 1, "invalid --topic-pattern"),
    ("nsq_to_http", [SOURCE], 1, "--topic and --channel are required"),
    ("nsq_to_http", ["--topic=t", SOURCE], 1, "--get or --post required"),
    ("nsq_to_http", ["--topic=t", SOURCE, POST, "--get=http://a/%s"], 1, "use --get or --post not"),
    (
        *("nsq_to_http", ["--topic=t", SOURCE, "--get=http://a/"], 1),
        "invalid GET address - must be a printf string",
    ),
    (
        *("nsq_to_http", ["--topic=t", SOURCE, "--get=http://a/%s", "--content-type=x"], 1),
        "--content-type only used with --post",
    ),
    (
        *("nsq_to_http", ["--topic=t", SOURCE, POST, "--sample=2"], 1),
        "ERROR: --sample must be between 0.0 and 1.0",
    ),
    ("nsq_to_http", ["--topic=t", SOURCE, POST, "--header=nocolon"], 1, "invalid --header"),
    ("nsq_to_nsq", [SOURCE], 1, "--topic and --channel are required"),
    ("nsq_to_nsq", ["--topic=t", SOURCE], 1, "--destination-nsqd-tcp-address required"),
]
TOOLS = ("to_nsq", "nsq_tail", "nsq_stat", "nsq_to_file", "nsq_to_http", "nsq_to_nsq")


def test_wrong_flags_are_refused_in_nsqs_words() -> None:
    running = [
        subprocess.Popen(
            [str(PROGRAMS / program), *flags], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        for program, flags, _, _ in WRONG
    ]
    for process, (program, flags, status, text) in zip(running, WRONG, strict=True):
        _, errors = process.communicate(timeout=60)
        assert (process.returncode, text in errors.decode()) == (status, True), (
            program,
            flags,
            errors,
        )


@pytest.mark.parametrize("program", TOOLS)
def test_the_version_is_nsqs(program: str) -> None:
    assert run_tool(program, "--version").stdout.decode() == f"{program} v1.3.0\n"


@pytest.mark.parametrize(
    ("program", "flags"),
    [
        ("to_nsq", ["--topic=t", SOURCE]),
        ("nsq_tail", ["--topic=t", SOURCE]),
        ("nsq_stat", [*STAT, f"--nsqd-http-address={NOWHERE}"]),
        ("nsq_stat", [*STAT, LOOKUP]),
        ("nsq_to_http", ["--topic=t", SOURCE, POST]),
        ("nsq_to_nsq", ["--topic=t", SOURCE, f"--destination-nsqd-tcp-address={NOWHERE}"]),
    ],
)
def test_a_host_that_is_not_there_at_the_start_ends_the_tool(
    program: str, flags: list[str]
) -> None:
    done = run_tool(program, *flags, stdin=b"x\n")
    assert done.returncode == 1
    assert b"FATAL" in done.stderr and b"Traceback" not in done.stderr


def test_to_nsq_publishes_every_record_to_every_nsqd(nsqd: Nsqd, tmp_path: Path) -> None:
    with Nsqd(tmp_path / "other") as other:
        for each in (nsqd, other):
            prepare(each, "t", "c")
        flags = ("--topic=t", source(nsqd), source(other), "--delimiter=,")
        done = run_tool("to_nsq", *flags, stdin=b"a,,b,lastnodelim")
        assert done.returncode == 0, done.stderr
        for each in (nsqd, other):
            shown = run_tool("nsq_tail", "--topic=t", "--channel=c", "-n=3", source(each))
            assert shown.stdout == b"a\nb\nlastnodelim\n"


def test_to_nsq_keeps_its_rate(nsqd: Nsqd) -> None:
    with subprocess.Popen(
        [str(PROGRAMS / "to_nsq"), "--topic=t", source(nsqd), "--rate=10"],
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdin is not None
        process.stdin.write(b"x\n" * 100)
        process.stdin.flush()
        count = 0

        def some() -> bool:
            nonlocal count
            topics = nsqd.stats("&topic=t")["topics"]
            count = topics[0]["message_count"] if topics else 0
            return count >= 5

        assert eventually(some)
        assert count < 20
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
        process.stdin = None


def test_to_nsq_says_when_nsqd_refuses(nsqd: Nsqd) -> None:
    done = run_tool("to_nsq", "--topic=t", source(nsqd), stdin=b"x" * 2_000_000)
    assert done.returncode == 1
    assert b"E_BAD_MESSAGE" in done.stderr


def test_nsq_tail_finishes_what_it_printed(nsqd: Nsqd) -> None:
    prepare(nsqd, "t", "c", *numbered(10))
    flags = ("--topic=t", "--channel=c", "-n", "3", "--print-topic", source(nsqd))
    done = run_tool("nsq_tail", *flags)
    assert (done.returncode, done.stdout) == (0, b"t | 0\nt | 1\nt | 2\n")
    state = nsqd.channel("t", "c")
    assert (state["depth"], state["in_flight_count"]) == (7, 0)
    assert state["requeue_count"] == 0, "nothing was taken that was not printed"


def test_nsq_tail_ends_with_its_reader(nsqd: Nsqd) -> None:
    prepare(nsqd, "t", "c", *(b"x" * 1000 for _ in range(300)))
    command = f"{PROGRAMS}/nsq_tail --topic=t --channel=c {source(nsqd)} | head -n 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, timeout=15)
    assert done.stdout == b"x" * 1000 + b"\n"
    assert b"failed to write to os.Stdout" in done.stderr and b"Traceback" not in done.stderr


def test_nsq_tail_finds_topics_and_ends_at_sigterm(tmp_path: Path) -> None:
    with Nsqlookupd() as lookupd:
        register = f"--lookupd-tcp-address={lookupd.tcp_address}"
        with Nsqd(tmp_path / "nsqd", register, "--broadcast-address=127.0.0.1") as nsqd:
            prepare(nsqd, "t", "c", b"found")
            assert eventually(lambda: lookupd.get("/lookup?topic=t").status == 200)
            flags = (f"--lookupd-http-address={lookupd.http_address}", "--channel=c")
            with Tool(tmp_path, "nsq_tail", "--topic=t", *flags) as tail:
                tail.until(lambda: tail.output == b"found\n")
                assert tail.terminate() == 0
            assert finished(nsqd, "t", "c")
            found = run_tool("nsq_stat", *STAT, flags[0], "--interval=50ms", "--count=1")
            assert found.returncode == 0, found.stderr


def test_nsq_stat_prints_what_was_asked_for(nsqd: Nsqd) -> None:
    prepare(nsqd, "t", "c", *numbered(5))
    address = f"--nsqd-http-address=127.0.0.1:{nsqd.http_port}"
    done = run_tool("nsq_stat", *STAT, address, "--interval=20ms", "--count=26")
    lines = done.stdout.decode().splitlines()
    header = [
        "------rate------+----------------depth----------------+"
        "--------------metadata---------------",
        "ingress  egress |   total     mem    disk inflt   def |"
        "     req     t-o         msgs clients",
    ]
    assert (done.returncode, len(lines)) == (0, 26 + 4)
    assert lines[:2] == lines[27:29] == header
    memory = nsqd.channel("t", "c")["depth"] - nsqd.channel("t", "c")["backend_depth"]
    assert lines[2] == (
        f"      0       0 |       5 {memory:7d} {5 - memory:7d}     0     0 |"
        "       0       0            5       0"
    )
    missing = run_tool("nsq_stat", "--topic=t", "--channel=nope", address)
    assert missing.returncode == 1
    assert b"ERROR: failed to find channel(nope) in stats metadata for topic(t)" in missing.stderr


def test_nsq_to_nsq_relays_and_filters(nsqd: Nsqd, tmp_path: Path) -> None:
    bodies = [
        json.dumps({"kind": kind, "n": 1.0, "rest": "x"}).encode() for kind in ("a", "b", "a")
    ]
    prepare(nsqd, "t", "nsq_to_nsq", *bodies, b"no json", b"[1]")
    with Nsqd(tmp_path / "other") as other:
        prepare(other, "u", "c")
        flags = ("--require-json-field=kind", "--require-json-value=a")
        fields = ("--whitelist-json-field=n", "--whitelist-json-field=kind", "--status-every=2")
        place = (
            "--destination-topic=u",
            f"--destination-nsqd-tcp-address=127.0.0.1:{other.tcp_port}",
        )
        with Tool(
            tmp_path, "nsq_to_nsq", "--topic=t", source(nsqd), *place, *flags, *fields
        ) as tool:
            tool.until(lambda: finished(nsqd, "t", "nsq_to_nsq"))
            tool.until(lambda: "[aggregate]: finished 2 - 99th: " in tool.log)
            assert tool.terminate() == 0
        shown = run_tool("nsq_tail", "--topic=u", "--channel=c", "-n=2", source(other))
        assert shown.stdout == b'{"kind":"a","n":1}\n' * 2
        assert other.channel("u", "c")["message_count"] == 2


def test_nsq_to_nsq_turns_to_the_host_that_lives(nsqd: Nsqd, tmp_path: Path) -> None:
    prepare(nsqd, "t", "nsq_to_nsq", *numbered(20))
    with Nsqd(tmp_path / "other") as other:
        flags = (
            f"--destination-nsqd-tcp-address={NOWHERE}",
            f"--destination-nsqd-tcp-address=127.0.0.1:{other.tcp_port}",
            "--consumer-opt=default_requeue_delay,10ms",
            "--consumer-opt=backoff-multiplier,10ms",
        )
        with Tool(tmp_path, "nsq_to_nsq", "--topic=t", source(nsqd), *flags) as tool:
            tool.until(lambda: finished(nsqd, "t", "nsq_to_nsq"))
            assert tool.terminate() == 0
        assert other.stats("&topic=t")["topics"][0]["message_count"] == 20
