"""Staged rows of a real nsqd whose files were damaged, and what an admin does about queries."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest
from google_crc32c import value as crc32c

from tests.support.daemon import Nsqd, Reply
from tests.support.faults import FaultyNsqd
from tests.support.staging import ATTEMPT, HttpQuery, plain

WINNER = (0, ATTEMPT)
OTHER = "f" * 32


def stage(query: HttpQuery, batch: int = 0, attempt: str = ATTEMPT) -> None:
    """A batch of two rows, sealed and decided for."""
    node = query.nsqd.get("/info").json["node_uuid"]
    assert query.put(0, "t", plain(b"a", b"b"), batch, 0, attempt).status == 200
    assert query.seal(1, 2, batch, 0, attempt).status == 200
    winners = [{"node": node, "partition": 0, "attempt": attempt, "count": 2}]
    reply = query.post("decide", batch=batch, winners=winners)
    assert reply.status == 200 and reply.json["recorded"], reply


def staging_file(path: Path) -> Path:
    (found,) = (path / "penstock" / "staging").glob("*.staging")
    return found


def refusal(reply: Reply) -> tuple[int, str]:
    return reply.status, reply.json["message"]


def damage(nsqd: Nsqd) -> list[Any]:
    return nsqd.get("/damage").json["records"]


# Damage


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_a_flipped_bit_in_the_header_loses_no_row(tmp_path: Path) -> None:
    with Nsqd(tmp_path) as nsqd:
        stage(query := HttpQuery(nsqd))
        nsqd.kill()
        flip(staging_file(tmp_path), 30)
        nsqd.start()
        (record,) = damage(nsqd)
        assert record["kind"] == "staging" and "header is damaged" in record["text"]
        assert list((tmp_path / "penstock" / "staging").glob("*.corrupt"))
        assert nsqd.get("/ping").text == "OK"
        assert query.publish(0, WINNER).json == {"count": 2, "already": False}


@pytest.mark.parametrize("how", ["flip", "cut", "remove"])
def test_a_staging_that_is_lost_is_reported_and_its_batch_held(tmp_path: Path, how: str) -> None:
    with Nsqd(tmp_path) as nsqd:
        stage(query := HttpQuery(nsqd))
        nsqd.terminate()
        path = staging_file(tmp_path)
        if how == "flip":
            flip(path, 64)
        elif how == "cut":
            path.write_bytes(path.read_bytes()[:-50])
        else:
            path.unlink()
        nsqd.start()
        (record,) = damage(nsqd)
        assert record["messages"] == 2 and f"attempt={ATTEMPT}" in record["text"]
        assert 'penstock_damage_messages_total{kind="staging"} 2' in nsqd.get("/metrics").text
        assert nsqd.get("/ping").text == "OK"
        for _ in range(2):
            reply = query.publish(0, WINNER)
            assert refusal(reply) == (410, "STAGING_LOST")
            assert reply.json["detail"] == record["text"]
        if how != "remove":
            kept = path.with_name(f"{path.name}.corrupt")
            assert kept.exists() and not path.exists()
        nsqd.restart()
        assert len(damage(nsqd)) == 1 and "damaged" not in nsqd.log
        assert refusal(query.publish(0, WINNER)) == (410, "STAGING_LOST")
        assert "t" not in [topic["topic_name"] for topic in nsqd.stats()["topics"]]
        assert query.post("give-up", batch=0, stagings=[{"partition": 0, "attempt": ATTEMPT}]).json
        assert query.publish(0, WINNER).json == {"count": 0, "already": False}
        stage(query, 1)
        assert query.publish(1, WINNER).json == {"count": 2, "already": False}


def test_a_later_version_refuses_the_start(tmp_path: Path) -> None:
    with Nsqd(tmp_path) as nsqd:
        stage(query := HttpQuery(nsqd))
        nsqd.kill()
        path = staging_file(tmp_path)
        good = path.read_bytes()
        later = bytearray(good)
        later[12:14] = b"\0\2"
        later[8:12] = crc32c(bytes(later[12:61])).to_bytes(4, "big")
        path.write_bytes(later)
        with pytest.raises(AssertionError, match=r"written by a later version \(format 2\)"):
            nsqd.start()
        assert path.read_bytes() == bytes(later)
        path.write_bytes(good)
        nsqd.start()
        assert query.publish(0, WINNER).json == {"count": 2, "already": False}
        assert damage(nsqd) == []


@pytest.mark.parametrize("pattern", ["*.staging", "*/ledger", "*/staging.notes"])
def test_a_disk_that_cannot_read_refuses_the_start_and_nothing_goes(
    tmp_path: Path, pattern: str
) -> None:
    with FaultyNsqd(tmp_path / "data") as nsqd:
        stage(query := HttpQuery(nsqd))
        nsqd.kill()
        nsqd.fault(pattern, errno.EIO, "pread", "read", "size")
        with pytest.raises(AssertionError, match=r"staged rows cannot be read: .*nothing was"):
            nsqd.start()
        nsqd.heal()
        nsqd.start()
        assert damage(nsqd) == []
        assert query.publish(0, WINNER).json == {"count": 2, "already": False}


def test_rows_that_cannot_be_read_for_a_while_are_published_later(tmp_path: Path) -> None:
    with FaultyNsqd(tmp_path / "data") as nsqd:
        stage(query := HttpQuery(nsqd))
        nsqd.fault("*.staging", errno.EIO, "pread")
        assert query.publish(0, WINNER).status == 500
        assert nsqd.get("/ping").status == 500
        nsqd.heal()
        assert query.publish(0, WINNER).json["count"] == 2
        assert nsqd.get("/ping").text == "OK" and damage(nsqd) == []


def test_a_damaged_ledger_holds_the_query_until_it_is_reset(tmp_path: Path) -> None:
    with Nsqd(tmp_path) as nsqd:
        stage(query := HttpQuery(nsqd))
        stage(other := HttpQuery(nsqd, "other"))
        nsqd.kill()
        ledger = tmp_path / "penstock" / "staging" / "ledger"
        flip(ledger, ledger.read_bytes().index(b'"winners"') + 2)
        nsqd.start()
        (record,) = damage(nsqd)
        assert record["kind"] == "ledger" and "held back: q" in record["text"]
        for _ in range(2):
            assert refusal(query.publish(0, WINNER)) == (409, "LEDGER_DAMAGED")
            assert refusal(query.post("decide", batch=1, winners=[])) == (409, "LEDGER_DAMAGED")
            nsqd.restart()
        assert other.publish(0, WINNER).json["count"] == 2
        assert query.post("reset").json == {"discarded": 1, "published": None}
        stage(query)
        assert query.publish(0, WINNER).json == {"count": 2, "already": False}
        assert len(damage(nsqd)) == 1


# Numbers of batches


@pytest.mark.parametrize("batch", [2_000_000_000, (1 << 53) - 1])
def test_a_batch_that_is_far_off_does_not_make_the_others_old(tmp_path: Path, batch: int) -> None:
    with Nsqd(tmp_path) as nsqd:
        stage(query := HttpQuery(nsqd))
        assert query.publish(0, WINNER).status == 200
        for reply in (
            query.put(0, "t", plain(b"x"), batch),
            query.post("decide", batch=batch, winners=[]),
            query.publish(batch),
        ):
            assert refusal(reply) == (409, "BATCH_TOO_FAR")
        nsqd.restart()
        assert refusal(query.publish(batch)) == (409, "BATCH_TOO_FAR")
        stage(query, 1)
        assert query.publish(1, WINNER).json == {"count": 2, "already": False}
        assert query.publish(1_000_001).status == 200, "batches without rows may be left out"


def test_the_highest_numbers_are_no_batches(tmp_path: Path) -> None:
    with Nsqd(tmp_path) as nsqd:
        query = HttpQuery(nsqd)
        for batch in (1 << 53, (1 << 63) - 1, 1 << 64, -1):
            assert query.put(0, "t", plain(b"x"), batch).status == 400
            for what in ("decide", "publish"):
                reply = query.post(what, batch=batch, winners=[])
                assert refusal(reply) == (400, "INVALID_BATCH")
        # One who got there first with a wrong number keeps nobody's rows from being missed.
        poisoned = HttpQuery(nsqd, "poisoned")
        assert poisoned.publish((1 << 53) - 1).status == 200
        for reply in (
            poisoned.put(0, "t", plain(b"x")),
            poisoned.post("decide", batch=0, winners=[]),
            poisoned.publish(0),
        ):
            assert refusal(reply) == (409, "BATCH_TOO_FAR")
            assert "reset" in reply.json["detail"]
        # A checkpoint that is older than the node begins with any number.
        stage(query, 1_800_000_000_000)
        assert query.publish(1_800_000_000_000, WINNER).json["count"] == 2


def test_an_admin_brings_a_query_back_to_its_numbers(tmp_path: Path) -> None:
    with Nsqd(tmp_path) as nsqd:
        query = HttpQuery(nsqd)
        assert query.publish(900_000).status == 200
        assert query.publish(7).json == {"count": 0, "already": True, "old": True}
        assert query.post("reset", published=6).json == {"discarded": 0, "published": 6}
        nsqd.kill()
        nsqd.start()
        assert query.publish(6, WINNER).json == {"count": 0, "already": True}
        stage(query, 7)
        assert query.publish(7, WINNER).json == {"count": 2, "already": False}
        wrong = query.post("reset", published=-1)
        assert refusal(wrong) == (400, "INVALID_PUBLISHED")


def test_only_an_admin_repairs(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("publish publish-token\nread reader-token\nadmin admin-token\n")
    with Nsqd(tmp_path / "nsqd", f"--http-auth-token-file={tokens}") as nsqd:
        for path, body in (
            ("/staging/reset", {"query": "q"}),
            ("/staging/give-up", {"query": "q", "batch": 0, "stagings": []}),
        ):
            for role, status in (("publish", 403), ("reader", 403), ("admin", 200), ("no", 401)):
                header = {"Authorization": f"Bearer {role}-token"}
                reply = nsqd.http("POST", path, json.dumps(body).encode(), header)
                assert reply.status == status, (path, role)


# Bodies that are no good


@pytest.mark.parametrize("name", ["decide", "publish", "abort", "coordinator", "give-up", "reset"])
def test_hostile_bodies_are_refused(tmp_path: Path, name: str) -> None:
    deep = b"[" * 900 + b"]" * 900
    bodies = [
        b"[" * 200_000,
        b'{"query":' * 200_000,
        b'{"query":"q","batch":' + b"[" * 200_000,
        b'{"query":"q","batch":0,"winners":' + deep + b',"stagings":' + deep + b"}",
        b'{"query":"q","batch":0,"coordinator":' + deep + b',"published":' + deep + b"}",
        b'{"query":"q","batch":0,"winners":[{"node":' + deep + b"}]}",
        b'{"query":"\\ud800","batch":0,"winners":[],"stagings":[]}',
        b'{"query":"q","batch":' + b"9" * 5000 + b"}",
        b'{"query":"q","batch":1e999,"published":1e999}',
        b'{"query":"q","batch":NaN,"published":NaN}',
        b'{"query":"q","batch":true,"published":true}',
        b'{"query":"q","coordinator":"00000000-0000-0000-0000-000000000001","address":"\\ud800"}',
        b"\xff\xfe",
        b"",
    ]
    with Nsqd(tmp_path) as nsqd:
        for body in bodies:
            reply = nsqd.post(f"/staging/{name}", body)
            if name == "reset" and reply.status == 200:
                continue  # it wants no more than the query
            assert reply.status == 400, (body[:60], reply)
        assert "Traceback" not in nsqd.log
