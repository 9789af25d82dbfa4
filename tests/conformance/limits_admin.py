"""Trials of the limits of nsqadmin: what daemons answer, and what is posted to it."""

from __future__ import annotations

from tests.support.limits import tried_by

HOSTILE = "tests.conformance.test_nsqadmin_hostile"
TOO_MUCH = f"{HOSTILE}:test_a_node_that_answers_too_much_fails_and_stops_nobody"
DECODING = "tests.unit.admin.test_decoders"

tried_by("A response of an nsqd to nsqadmin", "64 MiB, 4,000,000 values, 64 levels", TOO_MUCH)
tried_by(
    "A response of an nsqlookupd to nsqadmin",
    "16 MiB, 4,000,000 values, 64 levels",
    f"{HOSTILE}:test_an_nsqlookupd_that_answers_anything_hides_nobody",
)
tried_by(
    "Time and memory for decoding a response in nsqadmin",
    "15 s, 2 GiB",
    f"{DECODING}:test_what_takes_too_long_is_given_up_and_the_next_is_decoded",
)
tried_by(
    "Responses in memory in nsqadmin, all together",
    "192 MiB",
    f"{DECODING}:test_of_all_answers_together_the_largest_is_given_up",
)
tried_by(
    "A number in a response to nsqadmin",
    "2^63 - 1",
    f"{HOSTILE}:test_a_node_with_hostile_numbers_is_a_failing_one",
)
tried_by(
    "Nodes that nsqadmin queries",
    "1,000",
    "tests.unit.admin.test_sampler:test_a_crowd_of_nodes_is_bounded",
)
tried_by(
    "Clients on a page of nsqadmin",
    "1,000",
    "tests.unit.admin.test_sampler:test_a_crowd_of_clients_is_bounded",
)
