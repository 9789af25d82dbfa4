"""Trials of the limits of what is made at once."""

from __future__ import annotations

from tests.support.limits import tried_by

FLOODS = "tests.conformance.test_floods"

tried_by(
    "New topics being created at once",
    "128",
    f"{FLOODS}:test_a_flood_of_new_topics_does_not_hold_up_other_publishers",
)
tried_by(
    "Channels of a new topic from one nsqlookupd",
    "1,000",
    f"{FLOODS}:test_an_nsqlookupd_may_name_a_thousand_channels_of_a_topic",
)
tried_by(
    "Response of an nsqlookupd with the channels of a new topic",
    "64 KiB, and 134 bytes for each channel it may name",
    f"{FLOODS}:test_a_strange_answer_of_an_nsqlookupd_is_told_and_bounded",
)
