"""Moves buried messages of channels to other topics (R25), a batch of a channel at a time.

    move()   someone asked: a task, until its end or its first error
    owe()    a message was buried whose policy says `topic`: retried until it is moved

Rule 1: at most ACTIVE_COUNT_MAX batches are on their way, of different channels, which take turns.
Rule 2: what a policy moves cannot go in a circle: a chain of dead topics that leads back leaves the
        message buried.
Rule 3: a topic that cannot take messages is retried after 1 s, 2 s, 4 s ... 1 min; a log line and a
        counter say so.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from penstock.core.ticket import Ticket, settled
from penstock.engine.base import BaseTopic
from penstock.engine.channel import Channel
from penstock.engine.moves.batch import Batch
from penstock.engine.moves.sweep import Chosen
from penstock.engine.moves.tasks import Burial, Job, Mover, Owed, Task
from penstock.engine.rounds import LimitedQueue
from penstock.engine.shared import Shared
from penstock.engine.topic import Topic
from penstock.errors import MoveError
from penstock.settings.policy import MOVE
from penstock.wire.names import is_ephemeral, is_valid_name

ACTIVE_COUNT_MAX = 4
# Of one channel.
TASK_COUNT_MAX = 16
# Dead topics of dead topics that are followed in search of a circle.
CHAIN_MAX = 16


class Moves:
    """All moves of a broker; ``create_topic`` makes dead topics when they are first needed."""

    def __init__(
        self,
        shared: Shared,
        topics: dict[str, BaseTopic],
        create_topic: Callable[[str], tuple[BaseTopic, Ticket]],
    ) -> None:
        self._context = shared.context
        self._clock = shared.context.clock
        self._topics = topics
        self._create_topic = create_topic
        self._queue = LimitedQueue(shared.context, ACTIVE_COUNT_MAX)
        self._movers: dict[Channel, Mover] = {}

    def move(self, channel: Channel, to: str, chosen: Chosen, rate: int = 0) -> Task:
        """Move buried messages to the topic ``to``; the task's ticket is settled at the end.

        Raises MoveError if that cannot be.
        """
        check_target(channel, to)
        mover = self._mover(channel)
        if len(mover.tasks) >= TASK_COUNT_MAX:
            raise MoveError("TOO_MANY_REQUESTS", "too many moves of this channel wait")
        task = Task(channel, to, chosen, rate)
        mover.tasks.append(task)
        self._soon(mover)
        return task

    def owe(self, channel: Channel, indexes: list[int]) -> None:
        """Messages were buried that the channel's policy moves."""
        mover = self._mover(channel)
        mover.owed.add(indexes)
        if not mover.pause_ns:
            self._soon(mover)

    def stop(self, channel: Channel) -> list[Task]:
        """End the tasks of a channel after the current batch."""
        mover = self._movers.get(channel)
        if mover is None or not mover.tasks:
            return []
        tasks = list(mover.tasks)
        for task in tasks:
            task.stop()
        self._soon(mover)
        return tasks

    def search(self, channel: Channel) -> None:
        """Move all that is buried and that the channel's policy moves."""
        if not channel.window.movable or not (moves_failed(channel) or is_overfull(channel)):
            return
        mover = self._mover(channel)
        mover.owed.search()
        if not mover.pause_ns:
            self._soon(mover)

    def running(self, channel: Channel) -> Task | None:
        """The first task of a channel."""
        mover = self._movers.get(channel)
        return mover.tasks[0] if mover is not None and mover.tasks else None

    def start(self) -> None:
        """Move what the last process owed."""
        for topic in self._topics.values():
            for channel in topic.channels.values():
                if channel.window.buried_count:
                    self.search(channel)

    # ---- turns

    def _mover(self, channel: Channel) -> Mover:
        mover = self._movers.get(channel)
        if mover is None:
            mover = self._movers[channel] = Mover(channel, Owed(channel, partial(is_owed, channel)))
        return mover

    def _soon(self, mover: Mover) -> None:
        if not mover.queued:
            mover.queued = True
            self._queue.add(partial(self._step, mover)).add(partial(self._stepped, mover))

    def _stepped(self, mover: Mover, _: Ticket) -> None:
        mover.queued = False
        if mover.channel.closed:
            self._forget(mover)
        elif self._context.supervisor.exiting:
            self._forget(mover, MoveError("EXITING", "nsqd is exiting"))
        elif mover.idle:
            self._movers.pop(mover.channel, None)
        else:
            now_ns = self._clock.monotonic_ns()
            due_ns = mover.job(now_ns).not_before_ns
            if due_ns <= now_ns:
                self._soon(mover)
            elif not mover.wake_ns or due_ns < mover.wake_ns:
                mover.wake_ns = due_ns
                self._context.turns.after(due_ns - now_ns, partial(self._waited, mover, due_ns))

    def _waited(self, mover: Mover, due_ns: int) -> None:
        if mover.wake_ns == due_ns:  # otherwise an earlier one was set since, and has come
            mover.wake_ns = 0
            self._soon(mover)

    def _forget(self, mover: Mover, error: MoveError | None = None) -> None:
        self._movers.pop(mover.channel, None)
        while mover.tasks:
            mover.tasks.popleft().ticket.settle(error)

    def _step(self, mover: Mover) -> Ticket:
        """Begin a batch; the ticket is settled when it is done, or failed."""
        if mover.channel.closed or self._context.supervisor.exiting:
            return settled()
        now_ns = self._clock.monotonic_ns()
        job = mover.job(now_ns)
        if job.not_before_ns > now_ns:
            return settled()
        picked = job.pick()
        if picked is None and isinstance(job, Task):
            mover.tasks.remove(job)
            job.ticket.settle(job.error)
        if not picked:
            return settled()
        target = partial(self._target, mover.channel, job)
        return Batch(self._context, mover, job, target).begin(picked)

    # ---- the topic to move to

    def _target(self, channel: Channel, job: Job) -> tuple[Topic, Ticket]:
        """The topic of a job, created if missing; raises MoveError."""
        name = job.to if isinstance(job, Task) else channel.dead_topic or ""
        check_target(channel, name)
        if job.owed and self._leads_back(channel, name):
            raise MoveError("DEAD_TOPIC_CIRCLE", f"{name} and its dead topics lead back here")
        topic, created = self._create_topic(name)
        assert isinstance(topic, Topic)
        return topic, created

    def _leads_back(self, channel: Channel, name: str) -> bool:
        """Whether what is moved to a topic may be moved on, and come back."""
        seen = {name}
        ahead = deque(seen)
        while ahead:
            topic = self._topics.get(ahead.popleft())
            for other in topic.channels.values() if topic is not None else ():
                if not moves_failed(other):
                    continue
                following = other.dead_topic
                if following == channel.topic.name or len(seen) > CHAIN_MAX:
                    return True
                if following is not None and following not in seen:
                    seen.add(following)
                    ahead.append(following)
        return False


def check_target(channel: Channel, to: str) -> None:
    """Raise MoveError unless messages of a channel may be moved to the topic ``to``."""
    if not is_valid_name(to):
        raise MoveError("INVALID_TOPIC", f"{to[:80]!r} is not the name of a topic")
    if is_ephemeral(to):
        raise MoveError("EPHEMERAL_TOPIC", f"{to} is ephemeral: it would not keep messages")
    if to == channel.topic.name:
        raise MoveError("SAME_TOPIC", f"{to} is the topic that they are in")


def moves_failed(channel: Channel) -> bool:
    """Whether the policy moves messages when they fail, not only when there are too many."""
    return MOVE in (channel.policy.on_max_attempts, channel.policy.on_expired)


def is_owed(channel: Channel, row: Burial, count: int) -> bool:
    """Whether the channel's policy moves this buried message when ``count`` others are moved."""
    policy, reason = channel.policy, row[1]
    if reason == "attempts" and policy.on_max_attempts == MOVE:
        return True
    if reason == "expired" and policy.on_expired == MOVE:
        return True
    return is_overfull(channel, count)


def is_overfull(channel: Channel, count: int = 0) -> bool:
    """Whether too many messages are buried, not counting ``count`` of them."""
    kept_count = channel.window.buried_count - len(channel.moving) - count
    return kept_count > channel.policy.max_buried
