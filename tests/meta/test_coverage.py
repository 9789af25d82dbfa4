"""The promises of the design stay covered by something that can fail."""

from tests.meta.coverage_table import TARGET, covered, table


def test_every_row_and_rule_is_named_by_a_test_or_a_benchmark() -> None:
    missing = [row for row, where in covered().items() if not where]
    assert not missing


def test_the_page_in_docs_is_current() -> None:
    assert TARGET.read_text() == table(), "run: python -m tests.meta.coverage_table"
