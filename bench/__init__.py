"""The figures of docs/benchmarks.md.

workloads.py    the workloads as data: parameters, rounds, targets
throughput.py   publishing and consuming at full speed
timing.py       deadlines, deferral, latency
dead.py         buried messages: memory, kicks, messages that fail
footprint.py    the cost of idle things: a backlog, channels, a stuck message
broker.py       a broker of either make, started for one workload
run.py          the command: selects, alternates, collects
report.py       tables for a terminal and for Markdown
plots.py        charts

Those of docs/client.md:

clients.py      our client and others, in one run
client_load.py  the load of one library, in its own process
"""
