from __future__ import annotations

from dataclasses import field

import pytest

from penstock.record import record


@record
class Point:
    """Two numbers."""

    x: int
    y: int = 0


@record
class Other:
    x: int
    y: int = 0
    names: list[str] = field(default_factory=list)

    @property
    def total(self) -> int:
        return self.x + self.y


def test_fields_are_given_by_place_or_by_name_and_may_have_defaults() -> None:
    point = Point(1, y=2)
    assert (point.x, point.y, Point(1).y) == (1, 2, 0)
    assert Other(1, 2).total == 3
    with pytest.raises(TypeError):
        Point()  # type: ignore[call-arg]


def test_records_are_equal_by_class_and_fields() -> None:
    assert Point(1, 2) == Point(1, 2)
    assert Point(1, 2) != Point(1, 3)
    assert Point(1, 2) != Other(1, 2)
    assert Point(1, 2) != (1, 2)
    assert len({Point(1, 2), Point(1, 2), Point(2, 1)}) == 2


def test_a_record_shows_its_fields_and_has_no_others() -> None:
    assert repr(Point(1, 2)) == "Point(x=1, y=2)"
    with pytest.raises(AttributeError):
        Point(1).z = 3  # type: ignore[attr-defined]


def test_a_default_that_is_made_is_made_for_each() -> None:
    assert Other(1).names is not Other(1).names
