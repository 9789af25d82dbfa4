"""penstock.admin.charts: from numbers to lines, axes and words."""

from __future__ import annotations

import re

import pytest

from penstock.admin.charts import COUNT, DASHES, POINTS_MAX, RATE, SPAN, Values, chart


def points(path: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r"[ML]([\d.]+) ([\d.]+)", path)]


def test_a_line_runs_from_left_to_right_and_fits_its_axis() -> None:
    figure = chart("Depth", [("Depth", [0, 50, 100])], 5, COUNT)
    assert points(figure.lines[0].path) == [(0, 100), (500, 50), (1000, 0)]
    first, *_, last = figure.ticks
    assert (first.at, first.label) == ("100%", "0")
    assert (last.at, last.label) == ("0%", "100")


@pytest.mark.parametrize("highest", [0, 0.003, 0.9, 1, 3, 7, 19, 99, 101, 999, 12_345, 10**12])
def test_the_axis_reaches_over_the_highest_value_in_few_round_steps(highest: float) -> None:
    for unit in (COUNT, RATE, SPAN):
        figure = chart("t", [("a", [0, highest])], 5, unit)
        assert 2 <= len(figure.ticks) <= 6
        assert len({tick.label for tick in figure.ticks}) == len(figure.ticks)
        assert all(0 <= y <= 100 for _, y in points(figure.lines[0].path))


def test_a_gap_is_a_gap_and_a_lone_value_is_seen() -> None:
    path = chart("t", [("a", [1, None, 2, None, 3, 3])], 5, COUNT).lines[0].path
    assert path.count("M") == 3
    assert path.count("h2") == 2


def test_lines_differ_by_dashes_and_name_not_by_colour_alone() -> None:
    names = ["a", "b", "c", "d"]
    figure = chart("t", [(name, [1.0]) for name in names], 5, RATE)
    assert [line.name for line in figure.lines] == names
    assert len({line.dashes for line in figure.lines}) == len(DASHES) == 4


def test_peaks_survive_thinning() -> None:
    values: list[float | None] = [1.0] * 1000
    values[333] = 77.0
    figure = chart("t", [("a", values)], 5, COUNT)
    line = figure.lines[0]
    assert len(points(line.path)) <= POINTS_MAX
    assert "77" in line.values.split(",")
    assert figure.step_s == 15


@pytest.mark.parametrize("values", [[], [None], [None, None]])
def test_a_chart_without_values_says_so(values: Values) -> None:
    figure = chart("Lag", [("Lag", values)], 5, SPAN)
    assert figure.empty
    assert figure.summary == "Lag: nothing recorded yet."


def test_summary_and_table_say_what_the_lines_show() -> None:
    values = [float(n) for n in range(240)]
    figure = chart("Rate", [("In", values), ("Out", [0.0] * 240)], 15, RATE)
    assert figure.summary == (
        "Rate, the last 59 min 45 s: In now 239/s, lowest 0/s, highest 239/s; "
        "Out now 0/s, lowest 0/s, highest 0/s."
    )
    assert len(figure.table) == 12
    assert figure.table[0] == ("now", ["239/s", "0/s"])
    assert figure.table[1] == ("5 min ago", ["219/s", "0/s"])
    times = [tick.label.lstrip("\N{MINUS SIGN}") for tick in figure.times]
    assert times == ["60 min", "30 min", "now"]


def test_the_legend_says_what_is_newest() -> None:
    assert chart("t", [("a", [1, 2])], 5, COUNT).lines[0].now == "2"
    assert chart("t", [("a", [1, 2])], 5, COUNT, [3]).lines[0].now == "3"
