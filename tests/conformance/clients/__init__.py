"""Other people's clients, each in a process of its own that a test talks to.

A driver is started with nsqd's port and, as a JSON object, how to secure the connection (``ca``:
the path of an authority for TLS; ``snappy`` and ``deflate``: true; ``secret``: for AUTH).  It
speaks lines of JSON:

    in    {"do": "subscribe", "topic", "channel", "ready", "timeout_ms"}
          {"do": "publish", "topic", "bodies"}             one body: PUB, several: MPUB
          {"do": "defer", "topic", "body", "delay_ms"}     DPUB
          {"do": "finish" | "touch", "id"}
          {"do": "requeue", "id", "delay_ms"}
    out   {"event": "subscribed"}
          {"event": "published", "error": null | text}     one for each publish and defer, in order
          {"event": "message", "id", "attempts", "timestamp_ns", "body"}

Bodies are Latin-1, so that any byte can be told.  Heartbeats come every second.  At the end of its
input a driver leaves without answering what it has in flight.
"""
