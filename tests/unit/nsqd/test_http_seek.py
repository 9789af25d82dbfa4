"""The route of a seek on a broker without sockets (R22)."""

from __future__ import annotations

import json
from typing import Any

from penstock.net.http_message import HttpError, Pending, Request
from penstock.net.http_router import Router
from penstock.nsqd.http_seek import SeekApi
from tests.support.engine import Client, Engine


class Asker:
    """Asks for seeks of channel c of topic t."""

    def __init__(self) -> None:
        self.engine = Engine()
        self.router = Router()
        SeekApi(self.engine.broker).add_routes(self.router)

    def begin(self, query: str) -> Pending:
        request = Request("POST", "/channel/seek", f"topic=t&channel=c&{query}".encode())
        route, _ = self.router.resolve("POST", "/channel/seek")
        pending = route.handler(request)
        assert isinstance(pending, Pending)
        return pending

    def end(self, pending: Pending) -> tuple[int, Any]:
        self.engine.settle()
        try:
            response = pending.then(pending.ticket)
        except HttpError as error:
            response = error.response()
        return response.status, json.loads(response.body)


def test_a_channel_that_is_deleted_while_a_time_is_searched_is_not_sought() -> None:
    asker = Asker()
    client = Client(asker.engine, "t", "c")
    asker.engine.publish("t", b"m")
    client.close()
    pending = asker.begin("to=-1h")
    asker.engine.topic("t").delete_channel("c")
    asker.engine.topic("t").create_channel("c")
    assert asker.end(pending) == (404, {"message": "CHANNEL_NOT_FOUND"})


def test_messages_on_their_way_to_another_topic_are_waited_for() -> None:
    """R25: what is appended there would not be finished here."""
    asker = Asker()
    client = Client(asker.engine, "t", "c", ready_count=0)
    asker.engine.publish("t", b"m")
    client.channel.moving = frozenset((1,))
    status, answer = asker.end(asker.begin("to=latest"))
    assert (status, answer["message"]) == (409, "MESSAGES_MOVING")
    assert client.channel.depth == 1
    assert asker.end(asker.begin("to=latest&dry_run=true"))[1]["messages"] == 0
    client.channel.moving = frozenset()
    assert asker.end(asker.begin("to=latest"))[0] == 200
    assert client.channel.depth == 0


def test_what_was_removed_while_a_time_was_searched_is_noticed() -> None:
    """R22: what the search found is judged in the turn of the seek."""
    asker = Asker()
    engine = asker.engine
    client = Client(engine, "t", "c", ready_count=10)
    engine.publish("t", b"a")
    engine.publish("t", b"b")
    pending = asker.begin("to=-1h")
    assert engine.disk.works, "the search is on a disk thread"
    while not pending.ticket.done and engine.disk.works:
        engine.disk.step()
        for received in client.take():
            client.finish(received.index)
        engine.topic("t").removal.whole_from = engine.topic("t").end
        engine.topic("t").log.removed_ns = engine.clock.wall_ns()
        engine.settle()
    status, answer = asker.end(pending)
    assert (status, answer["message"]) == (409, "NOT_WHOLE")
    assert answer["whole_from"] == engine.topic("t").end
