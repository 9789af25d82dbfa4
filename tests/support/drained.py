"""Two brokers without sockets: one is drained, and hands what is deferred over to the other."""

from __future__ import annotations

import json
from collections import Counter, deque
from typing import Any
from urllib.parse import urlsplit

from penstock.engine.drain.handover import Answered
from penstock.net.http_message import HttpError, Pending, Request, Response
from penstock.net.http_router import Router
from penstock.nsqd.http_staging import StagingApi
from tests.crash.lossy import KEEP, Crashed, LossyFiles
from tests.support.engine import MS, SECOND, Engine

ADDRESS = "http://there:4151"


class Pair:
    """``here`` is drained to ``there``; answers between them may be lost."""

    def __init__(self, seed: int = 0, **options: Any) -> None:
        self.here = Engine(LossyFiles(), seed, **options)
        self.there = Engine(LossyFiles(), seed, **options)
        self.answers: deque[tuple[Answered, int, dict[str, Any]]] = deque()
        self.unreachable = False
        self.lost_answers = 0  # of the next requests: carried out, and not answered
        self.asked: list[str] = []
        self.ended = False
        self.crash_modes = [KEEP]
        self.seed = seed
        self._connect()

    def _connect(self) -> None:
        self.answers.clear()
        self.here.components.drain.handover.send = self._send
        self.here.components.drain.on_drained = self._exit

    def _send(
        self, method: str, address: str, target: str, body: bytes, answered: Answered
    ) -> None:
        # At once: what must be durable before a request is sent may not be durable otherwise.
        assert address == ADDRESS
        self.asked.append(f"{method} {target.partition('?')[0]}")
        status, fields = self.ask(method, target, body)
        if self.lost_answers:
            self.lost_answers -= 1
            status, fields = 0, {"message": "the connection was lost"}
        self.answers.append((answered, status, fields))

    def _exit(self) -> None:
        self.ended = True

    # Life

    def run(self, duration_ns: int) -> None:
        """Both live on for a while, or until the drained one has ended; crashes are survived."""
        end_ns = self.here.clock.monotonic_ns() + duration_ns
        while self.here.clock.monotonic_ns() < end_ns and not self.ended:
            try:
                self.here.advance(50 * MS)
            except Crashed:
                self.restart_here()
            try:
                self.there.advance(50 * MS)
            except Crashed:
                self.restart_there()
            self._deliver()
            if self.ended:
                self._end()

    def _end(self) -> None:
        try:
            self.here.exit()
            self.here.components.drain.forget()
        except Crashed:
            self.ended = False
            self.restart_here()

    def _deliver(self) -> None:
        while self.answers:
            answered, status, fields = self.answers.popleft()
            try:
                answered(status, fields)
                self.here.settle()
            except Crashed:
                self.restart_here()

    def ask(self, method: str, target: str, body: bytes) -> tuple[int, dict[str, Any]]:
        if self.unreachable:
            return 0, {"message": "refused"}
        if target == "/info":
            return 200, {"node_uuid": self.there.components.identity.uuid}
        try:
            response = self._handle(method, target, body)
        except Crashed:
            self.restart_there()
            return 0, {"message": "the connection was lost"}
        return response.status, json.loads(response.body)

    def _handle(self, method: str, target: str, body: bytes) -> Response:
        router = Router()
        StagingApi(self.there.components).add_routes(router)
        parts = urlsplit(target)
        request = Request(method, parts.path, parts.query.encode())
        request.body, request.content_size = body, len(body)
        try:
            answer = router.resolve(method, parts.path)[0].handler(request)
        except HttpError as error:
            return error.response()
        if isinstance(answer, Pending):
            self.there.done(answer.ticket)
            answer = answer.then(answer.ticket)
        return answer

    def restart_here(self) -> None:
        self._restart(self.here)
        self._connect()

    def restart_there(self) -> None:
        self._restart(self.there)

    def _restart(self, engine: Engine) -> None:
        while True:
            mode = self.crash_modes.pop(0) if len(self.crash_modes) > 1 else self.crash_modes[0]
            engine.crash(mode, self.seed)
            try:
                engine.start()
            except Crashed:
                continue
            return

    # Judging

    def bodies(self, *topics: str) -> Counter[bytes]:
        """What is in the logs of both."""
        found: Counter[bytes] = Counter()
        for engine in (self.here, self.there):
            for topic in topics:
                if topic in engine.broker.topics:
                    found.update(engine.logged(topic).values())
        return found

    def let_time_pass(self, hours: int) -> None:
        """Start the drained one again, as a new node, and fire what either still has."""
        for engine in (self.here, self.there):
            engine.crash(KEEP)
            engine.start()
            for _ in range(hours):
                engine.advance(10 * SECOND)
                engine.clock.step_wall(3600 * SECOND)
            engine.advance(10 * SECOND)
