"""Moving buried messages to a dead topic, each once (R25).

Rule 1: a message is appended to the other topic with its origin, that log is synced, and only then
        the message is finished at its source.
Rule 2: the other topic keeps the origins until the source's finish is synced.
Rule 3: a message that is being moved is in its channel's ``moving``, and buried until it is
        finished: kick and discard leave it alone.

    sweep       kicks and discards buried messages
    moves       the component: channels take turns
    tasks       which messages of a channel are moved, and where to
    batch       some of them: read, then moved
    messages    reading them
    move        a batch on its way: appended, synced, finished at its source
    recovery    settles at start what a crash has interrupted
"""
