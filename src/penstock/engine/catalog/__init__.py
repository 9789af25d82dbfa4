"""Which topics and channels exist, the node's identity, and how both are stored and recovered.

Rule 1: topics and channels are as durable as messages (R6): creating and deleting is answered when
        it is synced, and a crash in between leaves the old state or the new one.
Rule 2: journals and folders are authoritative; nsqd.dat follows them and is compared at start.
Rule 3: work that creates, changes or deletes topics uses a lane of the disk threads.

    creation     new topics, many at a time
    deletion     the steps of deleting a topic
    journal      a topic's journal: when to write, sync and compact it
    seek         places in a log: where channels start, and what they are sent to
    listing      the order of a topic's journal and nsqd.dat
    registry     nsqd.dat
    comparison   journal against nsqd.dat, at start
    inventory    which files a log has, recorded in its journal
    identity     the node's UUID, index floor and stamps
    data_path    whether the data path was removed or replaced
    saved_file   small files that are always rewritten
"""
