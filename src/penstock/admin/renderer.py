"""Templates and static files, read once at start.

Templates escape every value that is not Markup, and only formats.py creates Markup.  Static files
are served under a path with their digest, so that browsers cache them forever and still get a new
version at once; scripts import each other by relative paths, and so under the same digest.
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
    """The static files by name; ``instead`` is a folder that replaces the package's."""

    def __init__(self, instead: str = "") -> None:
        self._files: dict[str, bytes] = {}
        folder = Path(instead) if instead else resources.files("penstock.admin") / "static"
        for file in sorted(folder.iterdir(), key=lambda file: file.name):
            if file.name.rpartition(".")[2] in TYPES:
                self._files[file.name] = file.read_bytes()
        whole = b"\0".join(name.encode() + b"\0" + body for name, body in self._files.items())
        self.digest = hashlib.sha256(whole).hexdigest()[:12]

    def find(self, name: str) -> tuple[bytes, str] | None:
        """A file's bytes and its content type."""
        body = self._files.get(name)
        return None if body is None else (body, TYPES[name.rpartition(".")[2]])


class Templates:
    """Renders templates; ``common`` are values for all of them."""

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
