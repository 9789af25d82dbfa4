"""Staged rows: tasks of a query write them here, its driver publishes them together, once (R19).

Rule 1: acknowledged rows are durable once sealed; a sealed staging is published or dropped as a
        whole.
Rule 2: nothing is appended to a log before the intent to publish is synced.
Rule 3: stagings and publications are limited in bytes, number and disk threads.

    area                all stagings of a node: accepting, sealing, publishing, removing
    staging             one staging and its parts
    publication parts   publishing a batch to the logs
    deferred_rows       its deferred rows
    ledger              decided and published batches, by query
    recovery            recovering stagings at start
    losses              rows that can no longer be published, and what an admin can do
"""
