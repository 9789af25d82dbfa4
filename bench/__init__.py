"""The figures of docs/benchmarks.md.

workloads.py    what is measured, as data: parameters, rounds, targets
throughput.py   how: publishing and consuming as fast as it goes
timing.py            what happens on time: deadlines, deferral, latency
footprint.py         what things cost that just are there
broker.py       a broker of either make, started for one workload
run.py          the command: selects, alternates, gathers
report.py       tables for a terminal and for Markdown
plots.py        pictures

Those of docs/client.md:

clients.py      our client beside others, in one run
client_load.py  one library at work, a process of its own
"""
