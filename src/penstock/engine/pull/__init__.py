"""Pull channels: readers such as Spark that read ranges of a log over HTTP (R18, R45, R47).

Rule 1: a reader keeps its own offsets; messages that it has not committed are kept for it.
Rule 2: readers see only synced messages, and wait for them without cost to others.
Rule 3: readers slow clients down by at most a fixed share.

    channel    a cursor that its reader moves; creating and removing them
    patterns   topic names with wildcards whose new topics get a channel
    polls      long polls that wait for the end of a log to move
    reads      ranges of logs, read on disk threads
    pace       when reads must wait for clients
"""
