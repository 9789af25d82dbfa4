"""Staged rows: tasks of a query put them here, its driver publishes them together, once (R19).

Rule 1: what is acknowledged is durable once it is sealed; what is sealed is published or dropped
        whole.
Rule 2: nothing is appended to a log before the intent to publish is synced.
Rule 3: stagings and publications are bounded in bytes, number and works with the disk.

    area                all stagings of a node, and what becomes of them
    staging             one staging and its parts
    publication parts   a batch on its way into the logs
    deferred_rows       its rows that are published later
    ledger              what was decided and published, by query
    recovery            what a start finds
    losses              what cannot be published any more, and what an admin may do
"""
