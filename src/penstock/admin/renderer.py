"""Templates and static files, read once at the start.

Everything in a template is escaped unless it is said to be markup, and only formats.py says so.
The static files are served under a path with their own digest, so that browsers keep them for
ever and still see a new version at once; the modules among them import each other by relative
paths and so share it.
"""

from __future__ import annotations

import hashlib
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2

from penstock.admin import formats

TYPES = {
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


class Assets:
    """The static files: name to bytes; ``instead`` is another folder than the package's."""

    def __init__(self, instead: str = "") -> None:
        self._files: dict[str, bytes] = {}
        folder = Path(instead) if instead else resources.files("penstock.admin") / "static"
        for file in sorted(folder.iterdir(), key=lambda file: file.name):
            if file.name.rpartition(".")[2] in TYPES:
                self._files[file.name] = file.read_bytes()
        whole = b"\0".join(name.encode() + b"\0" + body for name, body in self._files.items())
        self.digest = hashlib.sha256(whole).hexdigest()[:12]

    def find(self, name: str) -> tuple[bytes, str] | None:
        """The bytes of a file and their type."""
        body = self._files.get(name)
        return None if body is None else (body, TYPES[name.rpartition(".")[2]])


class Templates:
    """Pages from dicts; ``common`` is what all of them see."""

    def __init__(self, common: dict[str, Any]) -> None:
        self._environment = jinja2.Environment(
            loader=jinja2.PackageLoader("penstock.admin"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self._environment.filters |= formats.FILTERS
        self._environment.globals |= common

    def render(self, name: str, values: dict[str, Any]) -> str:
        return self._environment.get_template(f"{name}.html").render(values)
