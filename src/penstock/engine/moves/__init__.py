"""Moving buried messages to a dead topic, each once (R25).

Rule 1: a message is appended to the other topic with its origin, that log is synced, and only then
        the message is finished at its source.
Rule 2: the other topic keeps the origins until the source's finish is synced.

    sweep       kicks and discards buried messages
    recovery    settles at start what a crash has interrupted
"""
