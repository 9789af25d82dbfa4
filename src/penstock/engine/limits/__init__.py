"""What a topic may hold, and for how long (R20).  What runs per batch is in bounds.pyx.

Rule 1: a limit is checked for each batch or turn, never for each message.
Rule 2: what happens at every message while a limit is reached is logged once.

    expiry     messages that are too old to be delivered
    episodes   states that come and go with every message, for the log
"""
