from typing import Any

from penstock.core.block import Block

class Arrivals:
    channels: dict[str, Any]
    paused: bool
    awaiting_channels: bool
    released: int
    message_count: int
    message_bytes: int
    held_count: int
    @property
    def frozen(self) -> bool: ...
    def count_in(self, block: Block, body_size: int) -> None: ...
