"""Pull channels: readers such as Spark that take ranges of a log over HTTP (R18, R45, R47).

Rule 1: a reader keeps its own offsets; what it has not committed is kept for it.
Rule 2: readers see only what is synced, and wait for it without cost to others.
Rule 3: readers never slow clients down by more than their share.

    channel    a cursor that its reader moves; making and removing them
    patterns   channels that new topics get because of their names
    polls      long polls: who waits for the end of a log
    reads      ranges of logs, read on threads
    pace       when reads have to wait for clients
"""
