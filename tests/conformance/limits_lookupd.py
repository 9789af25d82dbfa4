"""Trials of nsqlookupd's limits."""

from __future__ import annotations

import struct

from tests.support.limits import Daemons, exchange, trial, tried_by

TESTS = "tests.conformance.test_lookupd_limits:"

tried_by(
    "Connections of nsqlookupd",
    "as nsqd's: the limit of open files, less a reserve",
    "tests.conformance.test_lookupd_crowds:"
    "test_nsqds_are_never_evicted_and_who_is_refused_is_told_of",
)
tried_by(
    "Strings of an nsqd at nsqlookupd: hostname, version, zone, region",
    "255 bytes each",
    TESTS + "test_long_texts_are_cut_and_a_long_address_is_refused",
)
tried_by(
    "Broadcast address of an nsqd at nsqlookupd",
    "255 bytes",
    TESTS + "test_long_texts_are_cut_and_a_long_address_is_refused",
)
tried_by(
    "Topics and channels of an nsqd at nsqlookupd",
    "100,000",
    TESTS + "test_a_peer_registers_so_much_and_stays",
)
tried_by(
    "Topics and channels of all nsqds of an IP address at nsqlookupd",
    "5 times as many",
    "tests.unit.lookupd.test_registry:"
    "test_the_nsqds_of_an_address_share_a_number_of_names_and_nodes",
)
tried_by("nsqds of an IP address at nsqlookupd", "256", TESTS + "test_a_peer_is_so_many_nodes")
tried_by(
    "Topics and channels created over nsqlookupd's HTTP",
    "50,000",
    TESTS + "test_creating_over_http_has_an_end",
)
tried_by(
    "Topics and channels at nsqlookupd that are on no nsqd",
    "50,000",
    "tests.unit.lookupd.test_expiry:"
    "test_of_too_many_those_go_first_that_were_there_for_the_shortest_time",
)
tried_by(
    "Time for which nsqlookupd remembers such a name",
    "as long as it was there, 1 minute to 24 hours",
    TESTS + "test_what_a_peer_left_is_forgotten",
)


@trial("IDENTIFY at nsqlookupd", "64 KiB")
def _(daemons: Daemons) -> None:
    port = daemons.nsqlookupd().tcp_port
    refused = exchange(port, b"  V1IDENTIFY\n" + struct.pack(">i", (64 << 10) + 1))
    assert b"E_BAD_BODY IDENTIFY invalid body size 65537" in refused
    body = b"{}" + b" " * ((64 << 10) - 2)
    assert b"invalid body size" not in exchange(
        port, b"  V1IDENTIFY\n" + struct.pack(">i", 1 << 16) + body
    )


@trial("A command line at nsqlookupd", "1,024 bytes")
def _(daemons: Daemons) -> None:
    port = daemons.nsqlookupd().tcp_port
    assert b"longer than" not in exchange(port, b"  V1" + b"x" * 1024 + b"\n")
    assert b"E_INVALID command longer than 1024 bytes" in exchange(
        port, b"  V1" + b"x" * 1025 + b"\n"
    )
