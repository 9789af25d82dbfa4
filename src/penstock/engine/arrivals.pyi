from typing import Any

from penstock.core.appender import Batch
from penstock.core.block import Block
from penstock.core.tail import Tail

class Arrivals:
    tail: Tail
    channels: dict[str, Any]
    paused: bool
    awaiting_channels: bool
    shown_end: int
    released: int
    message_count: int
    message_bytes: int
    held_count: int
    @property
    def frozen(self) -> bool: ...
    def show(self, batch: Batch, node_id: int) -> None: ...
    def count_in(self, block: Block, body_size: int) -> None: ...
