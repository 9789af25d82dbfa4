"""The broker without sockets: topics, channels, delivery, deferred and staged messages.

Rule 1: one thread, the event loop, owns all state; what may wait for a disk goes through ``disk``.
Rule 2: a component gets the context and the components it uses; none gets the whole broker.
        Lower modules state what they need of higher ones as small protocols or callables.
Rule 3: clocks, files, threads and the loop come from the context, so that a test can replace them.

The top level has the broker, its topics and channels and what they share; the packages are

    catalog    which topics and channels exist, on disk
    deferred   deferred publishes
    pull       channels that are read by index over HTTP
    staging    rows of Spark's tasks, published together
    stats      what /stats shows
"""
