"""Removing what is finished (R5), and keeping it for a while (R21).

Rule 1: what is unfinished is never removed, and what is retained only if the disk is low.
Rule 2: before a removal the journal says from where on the log is whole (R18).

    removal      the finished segments of a topic: removing them, moving stragglers
    stragglers   unfinished messages of old segments
    retained     which finished segments are kept, and for how long
    watermark    giving up what is retained when the disk is low
    wakes        when a topic has to be checked; disk work of all topics in turn
"""
