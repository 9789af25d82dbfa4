"""Which topics and channels exist, who this node is, and how that gets to disk and back.

Rule 1: what exists is as durable as messages (R6): creating and deleting is answered when it is
        synced, and a crash in between leaves one or the other.
Rule 2: journals and folders are the truth; nsqd.dat follows them and is compared at start.
Rule 3: works that make, change or remove topics go by a lane of the disk, however many there are.

    creation     new topics, many at a time
    deletion     the steps of deleting a topic
    journal      a topic's journal: what is written, synced and compacted when
    listing      the order of a topic's journal and nsqd.dat
    registry     nsqd.dat
    comparison   journal against nsqd.dat, at start
    inventory    which files a log has, noted in its journal
    identity     the node's UUID, index floor and stamps
    data_path    whether the data path is still where it was
    saved_file   small files that are written whole
"""
