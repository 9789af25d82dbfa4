from __future__ import annotations

import sys
from pathlib import Path

import pytest
from pyspark import cloudpickle

from penstock.errors import PipelineError
from penstock.pipeline.user_code import load


def test_a_function_goes_to_workers_with_the_modules_beside_the_file(tmp_path: Path) -> None:
    (tmp_path / "beside_rates.py").write_text("RATE = 3\n")
    (tmp_path / "beside_steps.py").write_text(
        "import json\nimport beside_rates\n"
        "def triple(row):\n    return json.dumps(row['n'] * beside_rates.RATE)\n"
    )
    function = load("beside_steps:triple", tmp_path)
    packed = cloudpickle.dumps(function)
    # A worker has no such modules.
    for name in ("beside_steps", "beside_rates"):
        del sys.modules[name]
    sys.path.remove(str(tmp_path))
    assert cloudpickle.loads(packed)({"n": 2}) == "6"
    assert "beside_steps" not in sys.modules


def test_what_is_installed_goes_by_name(tmp_path: Path) -> None:
    assert len(cloudpickle.dumps(load("json:dumps", tmp_path))) < 100


def test_a_function_may_be_given_itself(tmp_path: Path) -> None:
    assert load(len, tmp_path) is len


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("nothing_like_it:f", "ModuleNotFoundError: No module named 'nothing_like_it'"),
        ("json:nothing", "no function nothing in"),
        ("beside_broken:f", "ZeroDivisionError: division by zero"),
    ],
)
def test_what_is_not_there_is_told(tmp_path: Path, reference: str, said: str) -> None:
    (tmp_path / "beside_broken.py").write_text("1 / 0\n")
    with pytest.raises(PipelineError, match=f"{reference}: {said}"):
        load(reference, tmp_path)
