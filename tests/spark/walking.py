"""A seeded random walk over a pipeline's days: runs, kills, backups put back, brokers emptied.

    python -m tests.spark.walking --walks=5000 --seed=1      prints the seed of each that fails

A walk is a list of (action, number); the number picks what the action leaves open, so a list that
fails can be shortened by leaving actions out.  At the end the pipeline runs until it succeeds, a
person answering what it asks, and then each table is judged:

Rule 1: no message is in a table twice, and no row is of no message.
Rule 2: a message that is not in it was told: it lies in a loss that the ledger records.  Excused is
        what nobody could know: no file that is left of the pipeline knew its log when something
        was done, and the broker did not know either that the pipeline had read it
        (``_excuse_unknown``).  A query that begins has no loss.
Rule 3: what the ledger says of files and counts is what lies in the folder.
Rule 4: the audit says so too: what it finds to be missing is what is excused, and nothing else.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq

from penstock.errors import DataWouldBeLostError, PenstockError
from penstock.pipeline.audit import Examination
from penstock.pipeline.audit_findings import Files
from penstock.pipeline.coverage import Log
from penstock.pipeline.folders import LocalFolder
from penstock.pipeline.known import read_known
from penstock.pipeline.ledger import Ledger
from penstock.pipeline.losses import LACKING, Answers, Questions
from penstock.pipeline.offset_log import OffsetLog
from penstock.pipeline.replaced import Replaced
from penstock.pipeline.spec import Pipeline
from penstock.pipeline.targets import ledger_path
from tests.daemon import Nsqd
from tests.spark.micro_batches import Killed, MicroBatches, Steps, kill
from tests.spark.pipelines import declared
from tests.spark.topics import SMALL, new_topic, node_uuid, publish

CHANNEL = "c"
BODY_SIZE = 1200  # three to a segment
STEPS_MAX = 60  # of a run that is killed or disturbed
LAST_RUNS_MAX = 16
TABLES = ("one", "two")
CHECKPOINT, BESIDE = "checkpoints/test", "checkpoints/test.ledger"

Action = tuple[str, int]
Runner = Callable[[Pipeline, Answers, Steps, random.Random], None]


class Message(NamedTuple):
    instance: str
    index: int
    body: bytes


def run_here(pipeline: Pipeline, answers: Answers, steps: Steps, chance: random.Random) -> None:
    """A run without Spark."""
    retained, merges = chance.choice((2, 4, 100)), chance.random() < 0.2
    MicroBatches(pipeline, answers, steps, retained=retained, merges=merges).run()


@dataclass
class Home:
    """A pipeline's folder, and what a person at it says next."""

    pipeline: Pipeline
    folder: Path
    answers: Answers = field(default_factory=Answers)
    told: str = ""  # by the last run, "" if it succeeded

    @property
    def tables(self) -> list[str]:
        return list(TABLES[: len(self.pipeline.sinks)])

    @property
    def beside(self) -> Path:
        return self.folder / BESIDE

    def ledger(self, table: str) -> Ledger:
        folder = LocalFolder(str(self.folder / table))
        return Ledger(folder, ledger_path(self.pipeline), "test", f"parquet {table}").load()

    def identity(self) -> str:
        """Who the pipeline is, by what is left of it."""
        told = [self.ledger(name).identity for name in self.tables if (self.folder / name).exists()]
        if self.beside.exists():
            told.append(read_known(LocalFolder(str(self.beside))).identity)
        kept = self.folder / CHECKPOINT / "identity.json"
        if kept.exists():
            told.append(json.loads(kept.read_text())["identity"])
        return next((each for each in told if each), "")

    def known_logs(self) -> set[Log]:
        """The logs that anything which is left of the pipeline knows."""
        found: set[Log] = set()
        for table in self.tables:
            if (self.folder / table).exists():
                found |= set(self.ledger(table).coverage.logs)
        if self.beside.exists():
            for coverage in read_known(LocalFolder(str(self.beside))).targets.values():
                found |= set(coverage.logs)
        if (self.folder / CHECKPOINT).exists():
            offsets = OffsetLog(LocalFolder(str(self.folder / CHECKPOINT)))
            for positions in (offsets.begin(), *map(offsets.positions, offsets.planned())):
                found |= {
                    Log(channel, node, topic, position.instance)
                    for channel, nodes in (positions or {}).items()
                    for node, topics in nodes.items()
                    for topic, position in topics.items()
                }
        return found

    def waiting(self) -> Any:
        return Questions(LocalFolder(str(self.beside)), Answers()).waiting


class RangesAudit(Examination):
    """The audit without Spark: all but the rows, which are judged here."""

    def _rows(self, files: Files) -> None:
        return None


class Walk:
    """One walk, on a topic of its own."""

    def __init__(self, nsqd: Nsqd, folder: Path, first: int, runner: Runner = run_here) -> None:
        chance = random.Random(first)
        self.nsqd = nsqd
        self.node = node_uuid(nsqd)
        self.folder = folder
        self.topic = new_topic()
        self.published: list[Message] = []
        self.excused: set[Message] = set()
        self.snapshots: list[Path] = []
        self.history: list[str] = []
        self._runner = runner
        self._tables = chance.choice((1, 1, 2))
        self._most = chance.choice((0, 3, 5))
        if chance.random() < 0.3:  # another reader keeps all messages
            nsqd.post(f"/topic/create?topic={self.topic}")
            nsqd.post(f"/channel/create?topic={self.topic}&channel=kept")
        self.home = self._home("home")
        self.others: dict[str, Home] = {}

    def _home(self, name: str) -> Home:
        folder = self.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        source: dict[str, Any] = {"topics": [self.topic], "channel": CHANNEL}
        source |= {"max_messages": self._most} if self._most else {}
        sinks = [{"type": "parquet", "path": path} for path in TABLES[: self._tables]]
        pipeline = declared(folder, self.nsqd, source=source, sink=sinks)
        return Home(pipeline, folder)

    def take(self, actions: Sequence[Action]) -> None:
        """All actions, the last runs, and the judgement."""
        for name, number in actions:
            self._act(name, random.Random(number))
        self._finish()
        self.judge()

    def _act(self, name: str, chance: random.Random) -> None:
        self.history.append(name)
        getattr(self, name)(chance)

    # Brokers

    def publish(self, chance: random.Random) -> None:
        for _ in range(chance.randint(1, 4)):
            count, first = chance.randint(1, 4), len(self.published)
            numbers = range(first, first + count)
            bodies = [b"%06d" % n + b"." * chance.randint(1, BODY_SIZE) for n in numbers]
            publish(self.nsqd, self.topic, *bodies)
            log = self.nsqd.get(f"/log?topic={self.topic}").json
            start = log["end"] - count
            self.published += [
                Message(log["instance"], start + n, body) for n, body in enumerate(bodies)
            ]

    def empty_channel(self, _: random.Random) -> None:
        self._excuse_unknown()
        self._post(f"/channel/empty?topic={self.topic}&channel={CHANNEL}&force=true")

    def empty_topic(self, _: random.Random) -> None:
        self._excuse_unknown()
        self._post(f"/topic/empty?topic={self.topic}&force=true")

    def delete_channel(self, _: random.Random) -> None:
        self._excuse_unknown(forgets=True)
        self._post(f"/channel/delete?topic={self.topic}&channel={CHANNEL}&force=true")

    def delete_topic(self, _: random.Random) -> None:
        self._excuse_unknown(forgets=True)
        self._post(f"/topic/delete?topic={self.topic}&force=true")

    def make_topic_again(self, chance: random.Random) -> None:
        self.delete_topic(chance)
        self.publish(chance)

    def restart(self, chance: random.Random) -> None:
        if chance.random() < 0.5:
            self.nsqd.kill()
            self.nsqd.start()
        else:
            self.nsqd.restart()

    def _post(self, target: str) -> None:
        reply = self.nsqd.post(target)
        assert reply.status in (200, 404), reply

    # Files

    def put_back_checkpoint(self, chance: random.Random) -> None:
        self._put_back(chance, [CHECKPOINT, *([BESIDE] if chance.random() < 0.3 else [])])

    def put_back_table(self, chance: random.Random) -> None:
        self._put_back(chance, [chance.choice(self.home.tables)])

    def put_back_all(self, chance: random.Random) -> None:
        beside = [BESIDE] if chance.random() < 0.7 else []
        self._put_back(chance, [CHECKPOINT, *beside, *self.home.tables])

    def _put_back(self, chance: random.Random, names: Sequence[str]) -> None:
        if not self.snapshots:
            return
        snapshot = chance.choice(self.snapshots)
        for name in names:
            shutil.rmtree(self.home.folder / name, ignore_errors=True)
            if (snapshot / name).exists():
                shutil.copytree(snapshot / name, self.home.folder / name)
        self._excuse_unknown()

    def delete_checkpoint(self, chance: random.Random) -> None:
        self._delete([CHECKPOINT, *([BESIDE] if chance.random() < 0.2 else [])])

    def delete_table(self, chance: random.Random) -> None:
        self._delete([chance.choice(self.home.tables)])

    def delete_both(self, chance: random.Random) -> None:
        self._delete([CHECKPOINT, *self.home.tables, *([BESIDE] if chance.random() < 0.3 else [])])

    def _delete(self, names: Sequence[str]) -> None:
        for name in names:
            shutil.rmtree(self.home.folder / name, ignore_errors=True)
        self._excuse_unknown()

    def _excuse_unknown(self, *, forgets: bool = False) -> None:
        """What a pipeline cannot miss: of logs that nothing which is left of it knows.

        A channel that is bound to the pipeline says that the log was read.  ``forgets``: that goes
        too, with the channel or with its reader.
        """
        known = {log.instance for log in self.home.known_logs()}
        if not forgets and (instance := self._bound_instance()):
            known.add(instance)
        self.excused |= {each for each in self.published if each.instance not in known}

    def _bound_instance(self) -> str:
        """The instance of the topic whose channel is bound to the pipeline; "" if none is."""
        log = self.nsqd.get(f"/log?topic={self.topic}").json
        bound = log.get("pull_channels", {}).get(CHANNEL, {}).get("identity")
        return str(log["instance"]) if bound and bound == self.home.identity() else ""

    def _snapshot(self) -> None:
        snapshot = self.folder / f"snapshot-{len(self.snapshots)}"
        shutil.copytree(self.home.folder, snapshot)
        self.snapshots.append(snapshot)

    # Runs

    def run(self, chance: random.Random) -> None:
        self._run(self.home, chance, Steps())
        self._snapshot()

    def run_killed(self, chance: random.Random) -> None:
        self._run(self.home, chance, Steps({chance.randint(1, STEPS_MAX): kill}))
        self._snapshot()

    def run_disturbed(self, chance: random.Random) -> None:
        """Something else happens while it runs."""
        event = chance.choice(DISTURBING)
        number = chance.randrange(1 << 30)
        at = chance.randint(1, STEPS_MAX)
        self._run(self.home, chance, Steps({at: lambda: self._act(event, random.Random(number))}))
        self._snapshot()

    def second_query(self, chance: random.Random) -> None:
        """Another pipeline on the same channel, which may take it over."""
        self._excuse_unknown(forgets=True)
        other = self.others.setdefault("second", self._home("second"))
        if chance.random() < 0.5:
            other.answers = Answers()
        self._run(other, chance, Steps())

    def copied_checkpoint(self, chance: random.Random) -> None:
        """A copy of all that the pipeline has runs elsewhere."""
        if "copy" not in self.others or chance.random() < 0.3:
            self.others["copy"] = self._home(f"copy-{len(self.history)}")
            folder = self.others["copy"].folder
            shutil.copytree(self.home.folder, folder, dirs_exist_ok=True)
            if chance.random() < 0.3:
                for table in self.home.tables:
                    shutil.rmtree(folder / table, ignore_errors=True)
        # A copy of an earlier pipeline is another one.
        self._excuse_unknown(forgets=self.others["copy"].identity() != self.home.identity())
        self._run(self.others["copy"], chance, Steps())

    def _run(self, home: Home, chance: random.Random, steps: Steps) -> None:
        answers, home.answers = home.answers, Answers()
        try:
            self._runner(home.pipeline, answers, steps, chance)
            home.told = ""
        except Killed:
            home.told = "killed"
        except PenstockError as error:
            home.told = f"{type(error).__name__}: {error}"
            home.answers = self._answer(home, error, chance)
        said = " ".join(f"{name}={text}" for name, text in asdict(answers).items() if text)
        self.history.append(f"  {home.folder.name} {said}: {home.told[:300] or 'ended'}")

    def _answer(self, home: Home, error: PenstockError, chance: random.Random) -> Answers:
        """What a person says to what a run has told."""
        if "CHANNEL_HAS_READER" in str(error) or "TAKE_OVER_REFUSED" in str(error):
            log = self.nsqd.get(f"/log?topic={self.topic}").json
            identity = log.get("pull_channels", {}).get(CHANNEL, {}).get("identity")
            return Answers(take_over=identity or "")
        if "belongs to another pipeline" in str(error) and home is self.home:
            # A table of before everything was deleted was put back.
            self._delete([name for name in home.tables if f"/{name}/" in str(error)])
        if not isinstance(error, DataWouldBeLostError):
            return Answers()
        waiting = home.waiting()
        if waiting.kind == LACKING and chance.random() < 0.5:
            return Answers(read_again=waiting.name)
        return Answers(accept_loss=waiting.name)

    def _finish(self) -> None:
        """Run until all is read, and once more: then there is nothing to do."""
        for number in range(LAST_RUNS_MAX):
            self._run(self.home, random.Random(number), Steps())
            if not self.home.told:
                break
        else:
            del self.history[3 - LAST_RUNS_MAX :]
            raise AssertionError(f"the pipeline cannot go on: {self.home.told}")
        before = {table: self.home.ledger(table).seq for table in self.home.tables}
        self._run(self.home, random.Random(3), Steps())
        assert not self.home.told, f"a run with nothing to do: {self.home.told}"
        after = {table: self.home.ledger(table).seq for table in self.home.tables}
        assert before == after, "a run with nothing to do has written"

    # Judging

    def judge(self) -> None:
        for table in self.home.tables:
            self._judge(table)

    def _judge(self, table: str) -> None:
        ledger = self.home.ledger(table)
        rows = list(self._rows(table, ledger))
        counts = Counter(rows)
        published = {(each.index, each.body): each for each in self.published}
        assert counts.keys() <= published.keys(), f"{table}: rows of no message"
        twice = [key for key, count in counts.items() if count > 1]
        assert not twice, f"{table}: twice: {[(index, body[:6]) for index, body in twice]}"
        lacking = [
            each
            for key, each in published.items()
            if key not in counts and each not in self.excused and not self._is_told(each, ledger)
        ]
        assert not lacking, (
            f"{table}: missing and not told: "
            f"{[(each.instance, each.index, each.body[:6]) for each in lacking]}"
        )
        self._judge_counts(table, ledger, [published[row] for row in rows])
        self._audit(table, ledger, [each for key, each in published.items() if key not in counts])

    def _audit(self, table: str, ledger: Ledger, lacking: Sequence[Message]) -> None:
        """Rule 4."""
        folder = LocalFolder(str(self.home.folder / table))
        report = RangesAudit(None, folder, self._audited).run()  # type: ignore[arg-type]
        told = json.dumps(report.as_json(), indent=1)
        assert list(report.losses) == list(ledger.head.losses), told
        assert not report.files.faults and not report.doubts, told
        untold = [each for each in lacking if not self._is_told(each, ledger)]
        for topic in report.topics:
            assert not topic.unproven, told
            for fault in topic.faults:
                inside = [
                    each
                    for each in untold
                    if each.instance == fault.log.instance and fault.start <= each.index < fault.end
                ]
                assert inside and fault.count in (None, len(inside)), f"{table}: {fault}\n{told}"

    @property
    def _audited(self) -> dict[str, str]:
        return {"topics": self.topic, "nsqd": f"127.0.0.1:{self.nsqd.http_port}"}

    def _rows(self, table: str, ledger: Ledger) -> Iterator[tuple[int, bytes]]:
        folder = self.home.folder / table
        live = ledger.live_files()
        lying = {
            str(path.relative_to(folder))
            for path in folder.rglob("*.parquet")
            if not path.relative_to(folder).parts[0].startswith("_")
        }
        replaced = {path for swap in Replaced(ledger)._swaps for path in swap.paths}
        assert live.keys() <= lying <= live.keys() | replaced, f"{table}: {live.keys() ^ lying}"
        for path, file in live.items():
            assert file.size == (folder / path).stat().st_size
            assert file.checksum == ledger.folder.checksum(path)
            found = pq.read_table(folder / path).to_pylist()
            assert len(found) == file.rows
            for row in found:
                assert (row["node"], row["topic"]) == (self.node, self.topic)
                yield row["index"], row["body"]

    def _is_told(self, message: Message, ledger: Ledger) -> bool:
        log = Log(CHANNEL, self.node, self.topic, message.instance)
        return any(
            loss.span.log == log and loss.span.start <= message.index < loss.span.end
            for loss in ledger.head.losses
        )

    def _judge_counts(self, table: str, ledger: Ledger, rows: Sequence[Message]) -> None:
        for span in ledger.coverage:
            if span.messages is None:
                continue
            inside = [
                row
                for row in rows
                if row.instance == span.log.instance and span.start <= row.index < span.end
            ]
            assert len(inside) == span.messages, f"{table}: {span}, and {len(inside)} rows"
        covered = [
            row
            for row in rows
            if not any(
                span.log.instance == row.instance and span.start <= row.index < span.end
                for span in ledger.coverage
            )
        ]
        assert not covered, f"{table}: rows that the ledger does not have: {covered}"


ACTIONS = {
    "publish": 24,
    "run": 16,
    "run_killed": 16,
    "run_disturbed": 8,
    "put_back_checkpoint": 5,
    "put_back_table": 5,
    "put_back_all": 3,
    "delete_checkpoint": 3,
    "delete_table": 3,
    "delete_both": 1,
    "empty_channel": 3,
    "empty_topic": 3,
    "delete_channel": 3,
    "delete_topic": 1,
    "make_topic_again": 3,
    "restart": 1,
    "second_query": 4,
    "copied_checkpoint": 4,
}
DISTURBING = (
    *("publish", "publish", "empty_channel", "empty_topic", "delete_channel", "delete_topic"),
    *("make_topic_again", "second_query", "copied_checkpoint"),
)


def actions_of(
    seed: int, least: int = 4, most: int = 12, without: Sequence[str] = ()
) -> list[Action]:
    chance = random.Random(seed)
    names = [name for name in ACTIONS if name not in without]
    weights = [ACTIONS[name] for name in names]
    picked = chance.choices(names, weights, k=chance.randint(least, most))
    return [("publish", seed), *((name, chance.randrange(1 << 30)) for name in picked)]


def walk(nsqd: Nsqd, folder: Path, actions: Sequence[Action], runner: Runner = run_here) -> Walk:
    """Take a walk; an AssertionError says what is wrong, with what was done."""
    made = Walk(nsqd, folder, actions[0][1], runner)
    try:
        made.take(actions)
    except Exception as error:
        text = "\n".join(made.history)
        raise AssertionError(f"{error}\nactions = {list(actions)}\n{text}") from error
    finally:
        nsqd.post(f"/topic/delete?topic={made.topic}&force=true")
        shutil.rmtree(folder, ignore_errors=True)
    return made


def fails(nsqd: Nsqd, folder: Path, actions: Sequence[Action]) -> str:
    try:
        walk(nsqd, folder, actions)
    except AssertionError as error:
        cause = error.__cause__
        trace = "".join(traceback.format_exception(cause)[-3:]) if cause is not None else ""
        return f"{error}\n{trace}"
    return ""


def shortened(nsqd: Nsqd, folder: Path, actions: list[Action]) -> list[Action]:
    """Fewer actions that fail too."""
    at = len(actions) - 1
    while at > 0:
        fewer = [*actions[:at], *actions[at + 1 :]]
        if fails(nsqd, folder, fewer):
            actions = fewer
        at -= 1
    return actions


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--walks", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--failures", type=int, default=5, help="end after so many")
    parser.add_argument("--actions", default="", help="a list that failed, as JSON")
    given = parser.parse_args()
    failed = 0
    start_s = time.monotonic()
    told: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder, Nsqd(Path(folder) / "nsqd", SMALL) as nsqd:
        place = Path(folder) / "walk"
        if given.actions:
            print(fails(nsqd, place, [tuple(each) for each in json.loads(given.actions)]))
            return 0
        for seed in range(given.seed, given.seed + given.walks):
            actions = actions_of(seed)
            try:
                walked = walk(nsqd, place, actions)
                told.update(line.split(":")[1] for line in walked.history if line.startswith(" "))
            except AssertionError as error:
                failed += 1
                short = shortened(nsqd, place, actions)
                text = fails(nsqd, place, short) or f"not always:\n{error}"
                print(f"seed {seed} fails: {json.dumps(short)}\n{text}\n")
                sys.stdout.flush()
                if failed >= given.failures:
                    break
        took_s = time.monotonic() - start_s
        print(f"seeds {given.seed} to {seed}: {failed} failed, {took_s:.0f} s; runs: {told}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
