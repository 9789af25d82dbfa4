"""Deferred publishing: messages accepted now and appended to their topic's log when due (R16, R17).

Rule 1: never early, never lost, never twice; queue has the details.
Rule 2: memory grows with what is due soon; bodies stay on disk until they are due.
Rule 3: all methods are called on the loop and do not wait; files are read and written on threads.

    queue         all deferred messages of a broker: accepting, taking due ones, firing
    parked        due messages that wait for room in their topic
    slot          one slot file, and the table of all of them
    writer        writes messages to slot files
    syncer        syncs of slot files
    counts        deferred.counts: how much each slot file must contain
    loader piece  read slot files piece by piece
    checkpoints   which records are done; removing slot files
    recovery      finding slot files at start
    transfer      messages on their way to another node
    damage        checking for damage, keeping evidence, reporting
"""
