"""What tests share, one of each.

Waiting and timing
    waits             eventually, wait_until, wait_for, until: bounded waits for a fact
    timing            by how much a measured time may be off on a busy machine
    parallel_tests    tests of one module that mostly wait, run at once

Programs and peers
    daemon            nsqd and nsqlookupd as processes; Raw, a connection that knows only frames
    processes         the children of a process, and whether they have ended
    client            a V2 client on a blocking socket; publish()
    secure_client     the same with TLS and compression
    proxy             a TCP proxy that cuts, stalls and refuses
    endpoint          an HTTP server that keeps its requests
    auth_server       an auth server as people write them for NSQ
    lookup_server     only the /lookup of nsqlookupd
    certificates      Pki: an authority and certificates (the fixture is ``pki`` in conftest.py)

The broker without sockets
    engine            Engine and Client: a broker with a clock, turns and disk under control
    deferred_harness  World: the same around a deferred queue alone
    bodies            of messages, one or several, as commands carry them
    staging           bodies of staged parts, and queries that stage them
    scanners          a peer of the command scanner
    blocks            frames and blocks, built byte by byte

Files and disks
    faults            calls to the disk that fail
    cut_folder        a pipeline's folder that fails before its n-th change
    small_disk        a file system of few megabytes
    page_cache        files that the kernel has forgotten
    go_queues         data paths as NSQ's own nsqd writes them

Documentation
    limits            a trial for each row of the table of limits
"""
