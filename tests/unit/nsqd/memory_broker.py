"""A broker in memory, with everything the HTTP API and the statistics ask of one.

Tickets are settled at once, or held back (``held``) until a test settles them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.core.appender import Appender
from penstock.core.ticket import Ticket, settled
from penstock.engine.options import Options
from penstock.engine.stats.latency import OFF, Percentiles
from tests.support.blocks import read_frames


@dataclass(eq=False)
class MemoryConnection:
    client_id: str = "c"
    hostname: str = "h"
    remote_address: str = "127.0.0.1:5"
    state: int = 3
    ready_count: int = 0
    in_flight_count: int = 0
    message_count: int = 0
    finish_count: int = 0
    requeue_count: int = 0
    connect_time: int = 1_794_717_442
    sample_rate: int = 0
    user_agent: str = "ref/1.0"
    topology_zone: str = ""
    topology_region: str = ""
    pub_counts: dict[str, int] = field(default_factory=dict)
    deflate: bool = False
    snappy: bool = False
    authed: bool = False
    auth_identity: str = ""
    auth_identity_url: str = ""
    tls: None = None


class MemoryChannel:
    def __init__(self, broker: MemoryBroker, name: str) -> None:
        self._broker = broker
        self.name = name
        self.paused = False
        self.depth = 0
        self.backend_depth = 0
        self.in_flight_count = 0
        self.deferred_count = 0
        self.message_count = 0
        self.requeue_count = 0
        self.timeout_count = 0
        self.finish_count = 0
        self.delivery_counts = [0, 0, 0]
        self.latency: Percentiles = OFF
        self.pull: dict[str, object] | None = None
        self.clients: list[MemoryConnection] = []

    def empty(self) -> Ticket:
        self.depth = 0
        return self._broker.ticket()

    def pause(self, paused: bool) -> Ticket:
        self.paused = paused
        return self._broker.ticket()


class MemoryTopic:
    def __init__(self, broker: MemoryBroker, name: str) -> None:
        self._broker = broker
        self.name = name
        self.paused = False
        self.bodies: list[bytes] = []
        self.message_count = 0
        self.message_bytes = 0
        self.deferred_count = 0
        self.latency: Percentiles = OFF
        self.channels: dict[str, MemoryChannel] = {}
        self.channels_known = settled()

    @property
    def depth(self) -> int:
        return 0 if self.channels else len(self.bodies)

    @property
    def backend_depth(self) -> int:
        return max(0, self.depth - self._broker.options.mem_queue_size)

    def publish(self, bodies: list[bytes]) -> Ticket:
        assert bodies
        if self._broker.error is None:
            self.bodies += bodies
            self.message_count += len(bodies)
            self.message_bytes += sum(map(len, bodies))
        return self._broker.ticket()

    def publish_multi(self, body: bytes) -> Ticket:
        options, appender = self._broker.options, Appender("t", 0, 0, lambda: None)
        appender.extend_multi(body, (options.max_body_size - 4) // 5, options.max_msg_size, 0)
        return self._publish_all(appender)

    def publish_lines(self, body: bytes) -> Ticket:
        appender = Appender("t", 0, 0, lambda: None)
        count = appender.extend_lines(body, self._broker.options.max_msg_size, 0)
        return self._publish_all(appender) if count else settled()

    def _publish_all(self, appender: Appender) -> Ticket:
        return self.publish([sent.body for sent in read_frames(appender.seal(0).payload)])

    def empty(self) -> Ticket:
        self.bodies.clear()
        return self._broker.ticket()

    def pause(self, paused: bool) -> Ticket:
        self.paused = paused
        return self._broker.ticket()

    def create_channel(self, name: str) -> tuple[MemoryChannel, Ticket]:
        channel = self.channels.setdefault(name, MemoryChannel(self._broker, name))
        return channel, self._broker.ticket()

    def delete_channel(self, name: str) -> Ticket:
        del self.channels[name]
        return self._broker.ticket()


class MemoryDamage:
    """No damage."""

    records: tuple[()] = ()
    summary = None

    def clear(self) -> Ticket:
        return settled()


class MemoryPulls:
    """Counts what was refused."""

    def __init__(self) -> None:
        self.refusal_counts = {"guard": 0}


class MemoryPatterns:
    """None."""

    stats: tuple[()] = ()


class MemoryBroker:
    def __init__(self, options: Options | None = None) -> None:
        self.options = options or Options(broadcast_address="host1")
        self.topics: dict[str, MemoryTopic] = {}
        self.clients: set[MemoryConnection] = set()
        self.start_time = 1_794_717_442
        self.node_uuid = "9f3c"
        self.deferred: list[tuple[str, bytes, int]] = []
        self.error: Exception | None = None
        self.hold = False
        self.damage = MemoryDamage()
        self.patterns = MemoryPatterns()
        self.pulls = MemoryPulls()
        self.held: list[Ticket] = []

    @property
    def healthy(self) -> bool:
        return self.error is None

    @property
    def health(self) -> str:
        return "OK" if self.error is None else f"NOK - {self.error}"

    def create_topic(self, name: str) -> tuple[MemoryTopic, Ticket]:
        topic = self.topics.setdefault(name, MemoryTopic(self, name))
        return topic, self.ticket()

    def delete_topic(self, name: str) -> Ticket:
        del self.topics[name]
        return self.ticket()

    def defer(self, topic: MemoryTopic, body: bytes, delay_ns: int) -> Ticket:
        self.deferred.append((topic.name, body, delay_ns))
        return self.ticket()

    def ticket(self) -> Ticket:
        ticket = Ticket()
        if self.hold:
            self.held.append(ticket)
        else:
            ticket.settle(self.error)
        return ticket
