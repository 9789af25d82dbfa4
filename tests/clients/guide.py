"""Writes the table of options into docs/client.md.

python -m tests.clients.guide
"""

from __future__ import annotations

from pathlib import Path

from penstock.client.config import Config
from penstock.settings.table import settings_of

GUIDE = Path(__file__).parents[2] / "docs" / "client.md"
HEAD = "| Option | Default | Allowed | Meaning |\n|---|---|---|---|"
BEGIN, END = "<!-- options begin -->\n", "<!-- options end -->\n"


def table() -> str:
    lines = []
    group = ""
    for setting in settings_of(Config):
        if setting.group != group:
            group = setting.group
            lines += [
                f"\n### {group}\n",
                "| Option | Default | Allowed | Meaning |",
                "|---|---|---|---|",
            ]
        default = setting.show_default()
        shown = f"`{default}`" if default else ""
        limits = setting.kind.limits() or setting.kind.kind
        lines.append(f"| `{setting.option}` | {shown} | {limits} | {setting.help} |")
    return "\n".join(lines) + "\n\n"


if __name__ == "__main__":
    page = GUIDE.read_text()
    before, _, rest = page.partition(BEGIN)
    GUIDE.write_text(before + BEGIN + table() + END + rest.partition(END)[2])
