"""/stats and other views of a broker that do not change it.

Rule 1: nothing here changes a topic or channel, or counts as use of one.
Rule 2: large responses are made in pieces, so that the loop serves clients in between.

    report    /stats as JSON and as NSQ's text
    latency   time from publish to finish
    memory    memory figures under the names of Go's runtime
    peek      messages of a channel, without consuming them
"""
