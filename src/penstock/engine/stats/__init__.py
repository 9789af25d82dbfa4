"""The numbers that are shown: /stats and what else looks at a broker without changing it.

Rule 1: nothing here changes a topic or channel, or counts as use of one.
Rule 2: what is large is made in pieces, so that the loop serves clients in between.

    report    /stats as JSON and as NSQ's text
    latency   time from publish to finish
    memory    memory figures under the names of Go's runtime
    peek      messages of a channel, looked at without consuming them
"""
