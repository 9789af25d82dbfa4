"""The policy file: what it may contain, and where an error is."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from penstock.engine.policy.file import FILE_SIZE_MAX, key_lines, parse_rules, read_rules
from penstock.errors import OptionError
from tests.support.timing import late_s

FILE = """\
# Ours.
[[policy]]
topic = "orders.*"
retain = "7d"
max_bytes = "10GB"

[["policy"]]
  "topic" = "orders.*"
  channel = 'email'   # [[policy]]
  max_attempts = 5
  'on_max_attempts' = "bury"
"""


def error_of(text: str) -> str:
    with pytest.raises(OptionError) as caught:
        parse_rules(text, "p.toml")
    return str(caught.value).removeprefix("--policy-file p.toml: ")


def test_the_rules_have_values_and_lines() -> None:
    rules = parse_rules(FILE, "p.toml")
    first, second = rules.of("orders.eu")
    assert rules.count == 2
    assert first.channel is None
    assert first.values["retain"] == (7 * 86400 * 10**9, "file: p.toml:4")
    assert first.values["max_bytes"] == (10**10, "file: p.toml:5")
    assert second.channel == "email"
    assert second.values["max_attempts"] == (5, "file: p.toml:10")
    assert second.values["on_max_attempts"] == ("bury", "file: p.toml:11")
    assert rules.of("billing") == ()


ERRORS = {
    '[[policy]]\nretian = "7d"': "line 2: 'retian' is not a key of policies; did you mean retain?",
    '[[policy]]\n\nretain = "7 days"': "line 3: retain must be a duration",
    "[[policy]]\nretain = 7": "line 2: retain must be a duration",
    "[[policy]]\nmax_attempts = -1": "line 2: max_attempts must be an integer from 0 to 65534",
    "[[policy]]\nmax_attempts = 5.5": "line 2: max_attempts must be an integer",
    "[[policy]]\nmax_attempts = true": "line 2: max_attempts must be an integer",
    "[[policy]]\nmax_attempts = [5]": "line 2: max_attempts must be an integer from 0 to 65534;"
    " it is a list",
    "[[policy]]\nmax_attempts = " + "9" * 40: "line 2: max_attempts must be an integer",
    '[[policy]]\noverflow = "explode"': "line 2: overflow must be one of refuse, drop-oldest",
    '[[policy]]\ndead_topic = "a b"': "line 2: dead_topic must be the name of a topic",
    '[[policy]]\ndead_topic = "a#ephemeral"': "line 2: dead_topic must be the name of a topic",
    f'[[policy]]\ndead_topic = "{"a" * 65}"': "line 2: dead_topic must be the name of a topic",
    '[[policy]]\ntopic = "a"\ndead_topic = "a"': "line 3: dead_topic must not be the topic itself",
    '[[policy]]\nchannel = "c"\nretain = "1h"': "line 3: retain is a key of topics",
    '[[policy]]\ntopic = "a b"\nretain = "1h"': "line 2: topic must be a name",
    '[[policy]]\ntopic = 5\nretain = "1h"': "line 2: topic must be a name",
    '[[policy]]\ntopic = ""\nretain = "1h"': "line 2: topic must be a name",
    '[[policy]]\nchannel = "[a]"\nmax_attempts = 1': "line 2: channel must be a name",
    '[[policy]]\ntopic = "a"': "line 1: the rule sets no key",
    "\n\n[[policy]]\n": "line 3: the rule sets no key",
    '[policy]\nretain = "1h"': "write each rule as a table [[policy]]",
    'policy = [{retain = "1h"}]': "write each rule as a table [[policy]]",
    'policy = "x"': "write each rule as a table [[policy]]",
    '\nretain = "1h"\n': "line 2: 'retain' is not in a [[policy]] table",
    '[[policies]]\nretain = "1h"': "line 1: 'policies' is not in a [[policy]] table",
    "[[policy]]\n[policy.retain]\nx = 1": "line 1: retain must be a duration",
    "[[policy]]\nretain.x = 1": "line 2: retain must be a duration",
    '[[policy]]\nretain = "1h"\nretain = "2h"': "line 3: 'retain' is there twice",
    '[[policy]\nretain = "1h"': "Expected ']]'",
    "[[policy]]\nx = " + "[" * 5000: "nested too deeply",
    "[[policy]]\n\nmax_messages = " + "9" * 5000: "line 3: Exceeds the limit",
    # The square of these sizes would be minutes.
    "[[policy]]\na" + ".a" * 500_000 + " = 1": "line 2: more than 16 dots",
    "[[policy]]\nx = {'a'" + ".'a'" * 500_000 + " = 1}": "line 2: more than 16 dots",
    "[[policy]]\n\n[policy" + ".a" * 500_000 + "]": "line 3: more than 16 dots",
    '[[policy]]\nretain = "' + '\\"' * 500_000: "at end of document",
    "[[policy]]\n" + "k" * 100_000 + " = 1": "line 2: 'kkkkk",
}


@pytest.mark.parametrize("text", ERRORS, ids=range(len(ERRORS)))
def test_an_error_names_line_and_key(text: str) -> None:
    error = error_of(text)
    assert ERRORS[text] in error, error
    assert len(error) < 600


def test_lines_are_found_among_texts_of_several_lines() -> None:
    text = (
        '[[policy]]\ntopic = """\nretain = 1\n[[policy]]\n"""\nmax_bytes = 1\n'
        '[[policy]]\ndead_topic = \'\'\'a\'\'\' # """\nretain = "\\"""\n'
        '[[policy]]\nx = """a\\"""b"""""\ny = 2\n'
    )
    assert key_lines(text) == [
        (1, {"topic": 2, "max_bytes": 6}),
        (7, {"dead_topic": 8, "retain": 9}),
        (10, {"x": 11, "y": 12}),
    ]


def test_dots_in_comments_and_texts_are_no_keys() -> None:
    dots = "see " + "..." * 20
    rules = parse_rules(f'# {dots}\n[[policy]]\nretain = "1h" # "{dots}\n', "p")
    assert rules.count == 1
    assert "line 2: retain must be" in error_of(f'[[policy]]\nretain = "{dots}"')


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    with pytest.raises(OptionError, match=r"--policy-file .*p.toml: No such file"):
        read_rules(str(path))
    path.write_bytes(b"[[policy]]\n\xff = 1\n")
    with pytest.raises(OptionError, match=r"line 2: not UTF-8"):
        read_rules(str(path))
    path.write_bytes(b"#" * (FILE_SIZE_MAX + 1))
    with pytest.raises(OptionError, match=r"more than 4 MiB"):
        read_rules(str(path))
    with pytest.raises(OptionError, match=r"Is a directory"):
        read_rules(str(tmp_path))
    with pytest.raises(OptionError):
        read_rules("p\0.toml")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OptionError, match=r"not a regular file"):
        read_rules(str(tmp_path / "pipe"))
    path.write_text("")
    assert read_rules(str(path)).count == 0


def test_there_is_a_limit_of_rules() -> None:
    rule = "[[policy]]\nmax_messages = 5\n"
    assert "10001 rules, over 10000" in error_of(rule * 10_001)


def test_ten_thousand_equal_rules_are_one() -> None:
    rules = parse_rules("[[policy]]\ntopic='**'\nmax_messages = 5\n" * 10_000, "p")
    assert rules.count == 10_000
    (kept,) = rules.of("any")
    assert kept.values == {"max_messages": (5, "file: p:30000")}


def test_ten_thousand_rules_for_every_topic_cost_milliseconds() -> None:
    text = "".join(
        f"[[policy]]\ntopic = '*{'?' * (n % 60)}'\nchannel = 'c{n}*'\nmax_attempts = {n}\n"
        for n in range(10_000)
    )
    rules = parse_rules(text, "p")
    start_s = time.perf_counter()
    assert len(rules.of("a" * 64)) == 10_000
    assert time.perf_counter() - start_s < 0.05 + late_s(0.2)
