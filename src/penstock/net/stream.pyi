from asyncio import AbstractEventLoop

from penstock.core.output import Output
from penstock.net.poller import Endpoint, Poller

class Stream(Endpoint):
    @property
    def output(self) -> Output: ...
    def __init__(self, loop: AbstractEventLoop, poller: Poller) -> None: ...
