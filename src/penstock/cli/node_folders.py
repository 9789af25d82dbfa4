"""The folders of `nsqd --processes N` in one data path: node-0, node-1 and so on."""

from __future__ import annotations

import logging
import re
from pathlib import Path

log = logging.getLogger(__name__)


def folder_name(node: int) -> str:
    return f"node-{node}"


def warn_left(data_path: str, count: int = 0) -> None:
    """Warn of folders of more nodes than ``count``: nothing serves their messages."""
    names = {path.name for path in Path(data_path or ".").glob("node-*")}
    served = {folder_name(node) for node in range(count)}
    if left := sorted(name for name in names - served if re.fullmatch(r"node-\d+", name)):
        log.warning("no node serves %s of %s", ", ".join(left), data_path or ".")
