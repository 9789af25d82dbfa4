"""`penstock bench` as a person meets it: flags, errors, and small runs against a real nsqd."""

from __future__ import annotations

import json
import os
import pty
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.cli.bench import UPGRADES, build_parser
from tests.support.certificates import Pki
from tests.support.daemon import Nsqd

SECONDS_MAX = 60


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = "import sys; from penstock.cli.bench import main; sys.exit(main())"
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
    )


def against(nsqd: Nsqd, *arguments: str) -> dict[str, dict[str, float]]:
    """Run against ``nsqd`` and return the JSON."""
    result = bench(*arguments, "--nsqd-tcp-address", f"127.0.0.1:{nsqd.tcp_port}", "--json", "-")
    assert (result.returncode, result.stderr) == (0, "")
    found: dict[str, dict[str, float]] = json.loads(result.stdout)
    return found


@contextmanager
def stranger(answer: bytes) -> Iterator[int]:
    """A server that is no nsqd: it says ``answer`` and hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(4)
                connection.sendall(answer)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(4096):
                    pass

        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        thread.join(SECONDS_MAX)


def test_help_explains_every_flag_and_command() -> None:
    result = bench("--help")
    assert result.returncode == 0
    for action in build_parser()._actions:
        assert action.help, action
        for flag in action.option_strings:
            assert flag in result.stdout
    for command in ("pub", "sub", "both", "latency"):
        assert f"\n  {command} " in result.stdout


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["fly"], "argument command: invalid choice: 'fly'"),
        ([], "the following arguments are required: command"),
        (["pub", "--size", "0"], "argument --size: 0 is not at least 1"),
        (["pub", "--batch", "many"], "argument --batch: invalid positive value: 'many'"),
        (["pub", "--duration", "-1"], "argument --duration: -1 is not a positive number"),
        (["pub", "--messages", "1", "--duration", "1"], "not allowed with argument --messages"),
        (["pub", "--nsqd-tcp-address", "here"], "'here' is not HOST:PORT"),
        (["pub", "--nsqd-tcp-address", "here:99999"], "'here:99999' is not HOST:PORT"),
        (["pub", "--rate", "5"], "argument --rate: only latency has a rate"),
        (["latency", "--batch", "2"], "argument --batch: latency publishes single messages"),
        (["latency", "--size", "7"], "argument --size: latency needs 8 bytes for the time"),
        (["pub", "--wat"], "unrecognized arguments: --wat"),
    ],
)
def test_wrong_use_is_named_with_status_2(arguments: list[str], text: str) -> None:
    result = bench(*arguments)
    assert result.returncode == 2
    assert text in result.stderr
    assert result.stdout == ""


def test_a_port_that_refuses_is_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    result = bench("pub", "--nsqd-tcp-address", f"127.0.0.1:{port}")
    assert result.returncode == 1
    assert result.stderr == f"penstock bench: 127.0.0.1:{port}: Connection refused\n"


def test_an_unknown_host_is_reported() -> None:
    result = bench("sub", "--nsqd-tcp-address", "no-such-host.invalid:4150")
    assert result.returncode == 1
    assert result.stderr.startswith("penstock bench: no-such-host.invalid:4150: ")
    assert "Traceback" not in result.stderr


def test_something_else_than_nsqd_is_recognised() -> None:
    with stranger(b"HTTP/1.1 400 Bad Request\r\n\r\n") as port:
        result = bench("pub", "--nsqd-tcp-address", f"127.0.0.1:{port}")
    assert result.returncode == 1
    assert "is this nsqd's TCP port?" in result.stderr


def test_a_server_that_hangs_up_is_reported() -> None:
    with stranger(b"") as port:
        result = bench("pub", "--nsqd-tcp-address", f"127.0.0.1:{port}")
    assert result.returncode == 1
    assert "the server closed the connection" in result.stderr


def test_an_error_frame_is_shown_as_it_came(nsqd: Nsqd) -> None:
    result = bench("pub", "--nsqd-tcp-address", f"127.0.0.1:{nsqd.tcp_port}", "--topic", "b@d")
    assert result.returncode == 1
    assert 'answered E_BAD_TOPIC PUB topic name "b@d" is not valid' in result.stderr


def test_a_process_that_is_not_there_is_reported(nsqd: Nsqd) -> None:
    address = f"127.0.0.1:{nsqd.tcp_port}"
    result = bench("pub", "--nsqd-tcp-address", address, "--pid", "4194305")
    assert (result.returncode, result.stderr) == (
        1,
        "penstock bench: no process with id 4194305\n",
    )


def test_exactly_the_messages_asked_for_are_published(nsqd: Nsqd) -> None:
    found = against(nsqd, "pub", "--messages", "1003", "--batch", "100", "--window", "3")
    assert found["published"]["messages"] == 1003
    (topic,) = nsqd.stats("&topic=bench")["topics"]
    assert topic["message_count"] == 1003
    assert topic["message_bytes"] == 1003 * 200


def test_single_messages_go_over_many_connections_and_processes(nsqd: Nsqd) -> None:
    flags = ["--messages", "500", "--connections", "10", "--processes", "2", "--size", "17"]
    assert against(nsqd, "pub", *flags)["published"]["messages"] == 500
    assert nsqd.stats("&topic=bench")["topics"][0]["message_bytes"] == 8500


def test_what_was_published_is_consumed_and_finished(nsqd: Nsqd) -> None:
    nsqd.post("/topic/create?topic=bench")
    nsqd.post("/channel/create?topic=bench&channel=bench")
    against(nsqd, "pub", "--messages", "5000", "--batch", "50")
    found = against(nsqd, "sub", "--messages", "5000", "--connections", "3", "--rdy", "100")
    assert found["consumed"]["messages"] == 5000
    channel = nsqd.channel("bench", "bench")
    assert (channel["depth"], channel["in_flight_count"], channel["requeue_count"]) == (0, 0, 0)


def test_an_idle_channel_ends_the_run(nsqd: Nsqd) -> None:
    assert "consumed" not in against(nsqd, "sub", "--messages", "10", "--idle", "0.3")


def test_both_consumes_all_that_it_publishes(nsqd: Nsqd) -> None:
    found = against(nsqd, "both", "--messages", "3000", "--batch", "10")
    assert found["published"]["messages"] == found["consumed"]["messages"] == 3000


def test_latency_is_measured_for_every_message(nsqd: Nsqd) -> None:
    found = against(nsqd, "latency", "--rate", "500", "--duration", "1", "--pid", str(nsqd.pid))
    assert found["consumed"]["messages"] == found["published"]["messages"] == 500
    times = found["latency_ms"]
    assert 0 < times["p50"] <= times["p99"] <= times["max"]
    assert found["server_rss_size"][1] > 2**20  # type: ignore[index]


def test_the_result_for_people_and_the_json_file_agree(nsqd: Nsqd, tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    address = f"127.0.0.1:{nsqd.tcp_port}"
    flags = ["--messages", "100", "--json", str(path), "--pid", str(nsqd.pid)]
    result = bench("pub", "--nsqd-tcp-address", address, *flags)
    assert result.returncode == 0
    assert result.stderr == ""
    found = json.loads(path.read_text())
    assert f"pub at {address} (nsqd {found['server_version']})" in result.stdout
    assert "published  100 messages in " in result.stdout
    assert "us of CPU per message" in result.stdout


def test_progress_is_shown_on_a_terminal_only(nsqd: Nsqd) -> None:
    ours, theirs = pty.openpty()
    program = "import sys; from penstock.cli.bench import main; sys.exit(main())"
    address = f"127.0.0.1:{nsqd.tcp_port}"
    flags = ["pub", "--nsqd-tcp-address", address, "--duration", "0.7"]
    result = subprocess.run(
        [sys.executable, "-c", program, *flags],
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
        timeout=SECONDS_MAX,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
    )
    os.close(theirs)
    shown = os.read(ours, 65536).decode()
    os.close(ours)
    assert result.returncode == 0
    assert "\x1b" not in result.stdout
    assert re.search(r"published [\d,]+ \([\d,]+/s\)", shown)


def test_a_json_file_that_cannot_be_written_is_reported(nsqd: Nsqd, tmp_path: Path) -> None:
    address = f"127.0.0.1:{nsqd.tcp_port}"
    path = tmp_path / "no" / "file"
    result = bench("pub", "--nsqd-tcp-address", address, "--messages", "1", "--json", str(path))
    assert result.returncode == 1
    assert result.stderr == f"penstock bench: {path}: No such file or directory\n"


@pytest.mark.parametrize("upgrade", UPGRADES)
def test_load_goes_through_tls_and_compression(tmp_path: Path, upgrade: str) -> None:
    with Nsqd(tmp_path / "nsqd", *Pki(tmp_path / "pki").options()) as nsqd:
        amount = ("--messages", "20000", "--batch", "50", "--upgrade", upgrade)
        found = against(nsqd, "both", *amount)
        assert found["published"]["messages"] == found["consumed"]["messages"] == 20_000
        single = ("--messages", "100", "--connections", "3", "--upgrade", upgrade)
        assert against(nsqd, "pub", *single)["published"]["messages"] == 100
