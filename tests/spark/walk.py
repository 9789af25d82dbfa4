"""A seeded random walk over a pipeline's days: runs, kills, backups put back, brokers emptied.

    python -m tests.spark.walk --walks=5000 --seed=1      prints the seed of each that fails

A walk is a list of (action, number); the number picks what the action leaves open, so a list that
fails can be shortened by leaving actions out.  The first number also picks the sinks and whether
there are one or two nodes.  At the end the pipeline runs until it succeeds, a person answering what
it asks, and then it is judged (`walk_verdict.py`): every message is in each sink once, or was told.

Excused is what nobody could know: no file that is left of the pipeline knew a log when something
was done, and the broker did not know either that the pipeline had read it (``_excuse_unknown``).
A query that begins has no loss.
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
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from penstock.errors import DataWouldBeLostError, PenstockError
from penstock.pipeline.losses import LACKING, Answers
from penstock.pipeline.spec import Pipeline
from tests.spark.micro_batches import Killed, MicroBatches, Steps, kill
from tests.spark.pipelines import declared
from tests.spark.topics import SMALL, address, new_topic, node_uuid, publish
from tests.spark.walk_home import BESIDE, CHANNEL, CHECKPOINT, Home, Message
from tests.spark.walk_verdict import Auditor, Judgement, audit_here
from tests.support.daemon import Nsqd

BODY_SIZE = 1200  # three to a segment
STEPS_MAX = 60  # of a run that is killed or disturbed
LAST_RUNS_MAX = 16
ONE = {"type": "parquet", "path": "one"}
DELTA = {"type": "delta", "path": "delta"}
TOPIC = {"type": "topic"}
SINKS: tuple[tuple[dict[str, str], ...], ...] = (
    *((ONE,), (ONE,), (ONE, {"type": "parquet", "path": "two"}), (ONE, DELTA)),
    *((DELTA,), (ONE, TOPIC), (TOPIC,)),
)

Action = tuple[str, int]
Runner = Callable[[Pipeline, Answers, Steps, random.Random], None]


def run_here(pipeline: Pipeline, answers: Answers, steps: Steps, chance: random.Random) -> None:
    """A run without Spark."""
    retained, merges = chance.choice((2, 4, 100)), chance.random() < 0.2
    MicroBatches(pipeline, answers, steps, retained=retained, merges=merges).run()


class Walk:
    """One walk, on a topic of its own."""

    def __init__(
        self, nsqds: Sequence[Nsqd], folder: Path, first: int, runner: Runner, auditor: Auditor
    ) -> None:
        chance = random.Random(first)
        self.nsqds = nsqds if chance.random() < 0.4 else nsqds[:1]
        self.folder = folder
        self.topic = new_topic()
        self.published: list[Message] = []
        self.excused: set[Message] = set()
        self.snapshots: list[Path] = []
        self.history: list[str] = []
        self._nodes = {nsqd: node_uuid(nsqd) for nsqd in self.nsqds}
        self._runner = runner
        self._auditor = auditor
        self._sinks = chance.choice(SINKS)
        self._most = chance.choice((0, 3, 5))
        if chance.random() < 0.3:  # another reader keeps all messages
            for nsqd in self.nsqds:
                nsqd.post(f"/topic/create?topic={self.topic}")
                nsqd.post(f"/channel/create?topic={self.topic}&channel=kept")
        self.home = self._home("home")
        self.others: dict[str, Home] = {}

    def _home(self, name: str) -> Home:
        folder = self.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        addresses = ",".join(map(address, self.nsqds))
        source: dict[str, Any] = {"topics": [self.topic], "channel": CHANNEL}
        source |= {"nsqd_http_addresses": addresses}
        source |= {"max_messages": self._most} if self._most else {}
        out = {"topic": f"{self.topic}.{name}"}
        sinks = [each | out if each is TOPIC else each for each in self._sinks]
        return Home(declared(folder, self.nsqds[0], source=source, sink=sinks), folder)

    def forget(self) -> None:
        """Leave nothing behind on the brokers."""
        homes = (self.home, *self.others.values())
        for topic in (self.topic, *(home.topic for home in homes if home.topic)):
            for nsqd in self.nsqds:
                nsqd.post(f"/topic/delete?topic={topic}&force=true")

    def take(self, actions: Sequence[Action]) -> None:
        """All actions, the last runs, and the judgement."""
        for name, number in actions:
            self._act(name, random.Random(number))
        self._finish()
        Judgement(
            *(self.home, self.nsqds, self.topic, self.published, self.excused, self._auditor)
        ).judge()

    def _act(self, name: str, chance: random.Random) -> None:
        self.history.append(name)
        getattr(self, name)(chance)

    # Brokers

    def publish(self, chance: random.Random) -> None:
        for _ in range(chance.randint(1, 4)):
            nsqd = chance.choice(self.nsqds)
            count, first = chance.randint(1, 4), len(self.published)
            numbers = range(first, first + count)
            bodies = [b"%06d" % n + b"." * chance.randint(1, BODY_SIZE) for n in numbers]
            publish(nsqd, self.topic, *bodies)
            log = nsqd.get(f"/log?topic={self.topic}").json
            start, place = log["end"] - count, (self._nodes[nsqd], log["instance"])
            self.published += [Message(*place, start + n, body) for n, body in enumerate(bodies)]

    def empty_channel(self, chance: random.Random) -> None:
        self._excuse_unknown()
        self._post(chance, f"/channel/empty?topic={self.topic}&channel={CHANNEL}&force=true")

    def empty_topic(self, chance: random.Random) -> None:
        self._excuse_unknown()
        self._post(chance, f"/topic/empty?topic={self.topic}&force=true")

    def delete_channel(self, chance: random.Random) -> None:
        self._excuse_unknown(forgets=True)
        self._post(chance, f"/channel/delete?topic={self.topic}&channel={CHANNEL}&force=true")

    def delete_topic(self, chance: random.Random) -> None:
        self._excuse_unknown(forgets=True)
        self._post(chance, f"/topic/delete?topic={self.topic}&force=true")

    def make_topic_again(self, chance: random.Random) -> None:
        self.delete_topic(chance)
        self.publish(chance)

    def restart(self, chance: random.Random) -> None:
        nsqd = chance.choice(self.nsqds)
        if chance.random() < 0.5:
            nsqd.kill()
            nsqd.start()
        else:
            nsqd.restart()

    def _post(self, chance: random.Random, target: str) -> None:
        """To one node, or to all."""
        for nsqd in self.nsqds if chance.random() < 0.5 else [chance.choice(self.nsqds)]:
            reply = nsqd.post(target)
            assert reply.status in (200, 404), reply

    # Files

    def put_back_checkpoint(self, chance: random.Random) -> None:
        self._put_back(chance, [CHECKPOINT, *([BESIDE] if chance.random() < 0.3 else [])])

    def put_back_table(self, chance: random.Random) -> None:
        self._put_back(chance, self._table(chance))

    def put_back_all(self, chance: random.Random) -> None:
        beside = [BESIDE] if chance.random() < 0.7 else []
        self._put_back(chance, [CHECKPOINT, *beside, *self.home.tables])

    def put_back_from_before_topic(self, chance: random.Random) -> None:
        """Everything, after a topic was made again and read: only its channel knows of that."""
        snapshot = self._snapshot()
        self.make_topic_again(chance)
        for _ in range(3):
            self.publish(chance)
            self._run(self.home, chance, Steps())
        self._put_back_from(snapshot, [CHECKPOINT, BESIDE, *self.home.tables])

    def _put_back(self, chance: random.Random, names: Sequence[str]) -> None:
        if self.snapshots:
            self._put_back_from(chance.choice(self.snapshots), names)

    def _put_back_from(self, snapshot: Path, names: Sequence[str]) -> None:
        self._excuse_accepted()
        for name in names:
            shutil.rmtree(self.home.folder / name, ignore_errors=True)
            if (snapshot / name).exists():
                shutil.copytree(snapshot / name, self.home.folder / name)
        self._excuse_unknown()

    def delete_checkpoint(self, chance: random.Random) -> None:
        self._delete([CHECKPOINT, *([BESIDE] if chance.random() < 0.2 else [])])

    def delete_table(self, chance: random.Random) -> None:
        self._delete(self._table(chance))

    def _table(self, chance: random.Random) -> list[str]:
        return [chance.choice(self.home.tables)] if self.home.tables else []

    def delete_both(self, chance: random.Random) -> None:
        self._delete([CHECKPOINT, *self.home.tables, *([BESIDE] if chance.random() < 0.3 else [])])

    def _delete(self, names: Sequence[str]) -> None:
        self._excuse_accepted()
        for name in names:
            shutil.rmtree(self.home.folder / name, ignore_errors=True)
        self._excuse_unknown()

    def _excuse_unknown(self, *, forgets: bool = False) -> None:
        """What a pipeline cannot miss: of logs that nothing which is left of it knows.

        A channel that is bound to the pipeline says that the log was read.  ``forgets``: that goes
        too, with the channel or with its reader.
        """
        known = {log.instance for log in self.home.known_logs()}
        if not forgets:
            identity = self.home.identity()
            known |= {instance for instance, bound in self._bound() if bound == identity}
        self.excused |= {each for each in self.published if each.instance not in known}

    def _excuse_accepted(self) -> None:
        """What was read before anything that is left, as its channel said, and accepted as lost.

        The ledgers alone know that: `known.json` has what tables cover.
        """
        spans = [loss.span for ledger in self.home.ledgers() for loss in ledger.head.losses]
        self.excused |= {
            each
            for each in self.published
            for span in spans
            if span.start == 0 and span.log.instance == each.instance and each.index < span.end
        }

    def _bound(self) -> list[tuple[str, str]]:
        """Of each node the instance of the topic, and the identity that its channel is bound to."""
        found = []
        for nsqd in self.nsqds:
            log = nsqd.get(f"/log?topic={self.topic}").json
            if bound := log.get("pull_channels", {}).get(CHANNEL, {}).get("identity"):
                found.append((str(log["instance"]), str(bound)))
        return found

    def _snapshot(self) -> Path:
        snapshot = self.folder / f"snapshot-{len(self.snapshots)}"
        shutil.copytree(self.home.folder, snapshot)
        self.snapshots.append(snapshot)
        return snapshot

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
        home.identities |= {home.identity()} - {""}
        said = " ".join(f"{name}={text}" for name, text in asdict(answers).items() if text)
        self.history.append(f"  {home.folder.name} {said}: {home.told[:300] or 'ended'}")

    def _answer(self, home: Home, error: PenstockError, chance: random.Random) -> Answers:
        """What a person says to what a run has told."""
        if "CHANNEL_HAS_READER" in str(error) or "TAKE_OVER_REFUSED" in str(error):
            others = {bound for _, bound in self._bound()} - {home.identity()}
            return Answers(take_over=min(others, default=""))
        if "an old ledger was restored" in str(error):
            shutil.rmtree(home.beside / home.topic_ledger_path)
        if "belongs to another pipeline" in str(error) and home is self.home:
            # A table of before everything was deleted was put back.
            self._delete([name for name in home.tables if f"/{name}/" in str(error)])
            if home.topic and home.topic_ledger_path in str(error):
                shutil.rmtree(home.beside / home.topic_ledger_path)
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
        before = [ledger.seq for ledger in self.home.ledgers()]
        self._run(self.home, random.Random(3), Steps())
        assert not self.home.told, f"a run with nothing to do: {self.home.told}"
        after = [ledger.seq for ledger in self.home.ledgers()]
        assert before == after, "a run with nothing to do has written"


ACTIONS = {
    "publish": 24,
    "run": 16,
    "run_killed": 16,
    "run_disturbed": 8,
    "put_back_checkpoint": 5,
    "put_back_table": 5,
    "put_back_all": 3,
    "put_back_from_before_topic": 2,
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


@dataclass(frozen=True)
class Place:
    """Where walks are taken, one after the other."""

    nsqds: list[Nsqd]
    folder: Path

    @classmethod
    @contextmanager
    def open(cls) -> Iterator[Place]:
        """Two nodes.  In memory where that is possible: nothing is synced that a kill could lose,
        and a walk makes and removes a thousand files.
        """
        memory = Path("/dev/shm")
        with (
            tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as name,
            Nsqd(Path(name) / "1", SMALL) as one,
            Nsqd(Path(name) / "2", SMALL, "--node-id=2") as two,
        ):
            yield cls([one, two], Path(name) / "walk")


def walk(
    place: Place,
    actions: Sequence[Action],
    runner: Runner = run_here,
    auditor: Auditor = audit_here,
) -> Walk:
    """Take a walk; an AssertionError says what is wrong, with what was done."""
    made = Walk(place.nsqds, place.folder, actions[0][1], runner, auditor)
    try:
        made.take(actions)
    except Exception as error:
        text = "\n".join(made.history)
        raise AssertionError(f"{error}\nactions = {list(actions)}\n{text}") from error
    finally:
        made.forget()
        shutil.rmtree(place.folder, ignore_errors=True)
    return made


def fails(place: Place, actions: Sequence[Action]) -> str:
    try:
        walk(place, actions)
    except AssertionError as error:
        cause = error.__cause__
        trace = "".join(traceback.format_exception(cause)[-3:]) if cause is not None else ""
        return f"{error}\n{trace}"
    return ""


def shortened(place: Place, actions: list[Action]) -> list[Action]:
    """Fewer actions that fail too."""
    at = len(actions) - 1
    while at > 0:
        fewer = [*actions[:at], *actions[at + 1 :]]
        if fails(place, fewer):
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
    with Place.open() as place:
        if given.actions:
            print(fails(place, [tuple(each) for each in json.loads(given.actions)]))
            return 0
        for seed in range(given.seed, given.seed + given.walks):
            actions = actions_of(seed)
            try:
                walked = walk(place, actions)
                told.update(line.split(":")[1] for line in walked.history if line.startswith(" "))
            except AssertionError as error:
                failed += 1
                short = shortened(place, actions)
                text = fails(place, short) or f"not always:\n{error}"
                print(f"seed {seed} fails: {json.dumps(short)}\n{text}\n")
                sys.stdout.flush()
                if failed >= given.failures:
                    break
        took_s = time.monotonic() - start_s
        print(f"seeds {given.seed} to {seed}: {failed} failed, {took_s:.0f} s; runs: {told}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
