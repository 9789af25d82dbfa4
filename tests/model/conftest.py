"""The time limit of these tests.

They take ten seconds on an idle machine, and a limit that strikes inside of an example looks like a
failure of it: hypothesis repeats the example, it passes, and the test ends with Flaky.
"""

from __future__ import annotations

import pytest

SECONDS_MAX = 600


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent.name == "model" and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(SECONDS_MAX))
