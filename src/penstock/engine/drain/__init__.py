"""Emptying a node before it is removed, each of its messages delivered or handed over once.

Rule 1: clients' publishes are refused; what the broker itself has to append is not.
Rule 2: the state is durable before it is answered.
Rule 3: nothing is given up: what cannot leave by itself is shown.

    drain      the state of the node, and when it ends
    survey     what is left, and what of it is blocked
    handover   deferred messages go to another node, through its staging (R19)
"""
