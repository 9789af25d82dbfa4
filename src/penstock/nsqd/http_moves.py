"""POST /channel/move: buried messages of a channel go to another topic, each once (R25).

{"moved":1000,"left":41}      {"moving":1000,"left":1041}, with a rate: it goes on afterwards

Which messages is said as for kick and discard (http_dead.py).  If a batch fails, those before it
are moved, and the others stay buried: the error has both counts, and the reason for people.
"""

from __future__ import annotations

from penstock.core.ticket import Ticket
from penstock.engine.channel import Channel
from penstock.engine.components import Components
from penstock.engine.health import is_full
from penstock.engine.moves.tasks import Task
from penstock.errors import MoveError, TopicFullError
from penstock.net.http_message import HttpError, Pending, Request, Response, json_response
from penstock.net.http_router import Route, Router
from penstock.nsqd.http_dead import RATE_MAX, DeadApi, chosen_by

# Moves that are answered when they end, at once.
MOVE_COUNT_MAX = 4

_STATUSES = {
    "EXITING": 503,
    "INVALID_TOPIC": 400,
    "TOO_MANY_REQUESTS": 503,
}


class MoveApi:
    """The route; ``dead`` finds channels and messages."""

    def __init__(self, components: Components, dead: DeadApi) -> None:
        self._moves = components.moves
        self._dead = dead
        self._count = 0

    def add_routes(self, router: Router) -> None:
        router.add("POST", "/channel/move", Route(self.move, logged=True))

    def move(self, request: Request) -> Response | Pending:
        topic, channel = self._dead.find(request)
        if request.boolean("stop"):
            stopped = self._moves.stop(channel)
            return _counted(channel, sum(task.moved_count for task in stopped))
        to = request.argument("to")
        chosen = chosen_by(request, topic)
        rate = request.number("rate", RATE_MAX, minimum=1, absent=0)
        if not rate and self._count >= MOVE_COUNT_MAX:
            raise HttpError(503, "TOO_MANY_REQUESTS")
        try:
            task = self._moves.move(channel, to, chosen, rate)
        except MoveError as error:
            status = _STATUSES.get(error.code, 409)
            raise HttpError(status, error.code, detail=str(error)) from None
        if rate:
            return json_response({"moving": task.left, "left": channel.window.buried_count})
        self._count += 1
        return Pending(task.ticket, lambda ended: self._ended(channel, task, ended))

    def _ended(self, channel: Channel, task: Task, ended: Ticket) -> Response:
        self._count -= 1
        error = ended.error
        if error is None:
            return _counted(channel, task.moved_count)
        status, code = 500, "INTERNAL_ERROR"
        if isinstance(error, MoveError):
            status, code = _STATUSES.get(error.code, 409), error.code
        elif isinstance(error, TopicFullError):
            status, code = 507, "TOPIC_FULL"
        elif is_full(error):
            status, code = 503, "DISK_FULL"
        counts = {"moved": task.moved_count, "left": channel.window.buried_count}
        return HttpError(status, code, detail=str(error), **counts).response()


def _counted(channel: Channel, moved_count: int) -> Response:
    return json_response({"moved": moved_count, "left": channel.window.buried_count})
