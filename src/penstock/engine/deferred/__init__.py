"""Deferred publishing: messages accepted now and appended to their topic's log when due (R16, R17).

Rule 1: never early, never lost, never twice; queue has the details.
Rule 2: memory follows what is due soon; bodies stay on disk until they are due.
Rule 3: everything is called on the loop and does not wait; files are read and written on threads.

    queue         all deferred messages of a broker: in, due, fired
    slot          one slot file, and the table of all of them
    writer        the way of messages into slot files
    syncer        syncs of slot files
    counts        how much every slot file must hold, on disk
    loader piece  slot files read back, piece by piece
    checkpoints   which records are done; the end of a slot file
    recovery      what a start finds
    damage        what is damaged: judged, kept, reported
"""
