"""Shared test code, one of each.

Waiting and timing
    waits             eventually, wait_until, wait_for, until: bounded waits for a condition
    timing            tolerances for measured times on a busy machine
    parallel_tests    runs tests of one module that mostly wait concurrently

Programs and peers
    daemon            nsqd and nsqlookupd as processes; Raw, a connection that knows only frames
    processes         the children of a process, and whether they have ended
    client            a V2 client on a blocking socket; publish()
    secure_client     the same with TLS and compression
    proxy             a TCP proxy that resets, stalls and refuses connections
    endpoint          an HTTP server that records its requests
    auth_server       an auth server as people write them for NSQ
    lookup_server     only /lookup of nsqlookupd
    certificates      Pki: an authority and certificates (the fixture is ``pki`` in conftest.py)

The broker without sockets
    engine            Engine and Client: a broker with a controlled clock, turns and disk
    deferred_harness  World: the same around a deferred queue alone
    drained           Pair: two brokers, one is drained and hands over to the other
    bodies            bodies of messages as commands have them
    staging           bodies of staged parts, and queries that stage them
    scanners          a peer of the command scanner
    blocks            frames and blocks, built byte by byte
    logs              queries on a topic's log that only tests need

Files and disks
    faults            file calls that fail
    cut_folder        a pipeline's folder that fails before its n-th change
    retention         a topic that retains, and a consumer that finishes everything
    thousands         a topic with thousands of retained segments, in sparse files
    small_disk        a file system of a few megabytes
    page_cache        drops files from the page cache
    go_queues         data paths as NSQ's own nsqd writes them

Documentation
    limits            a trial for each row of the table of limits
"""
