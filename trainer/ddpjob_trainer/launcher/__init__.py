"""The main process of every pod: starts the workers, and in pod 0 decides for all (the coordinator).

How it is laid out: `coordinator.py` is the pure state machine over one `job.py` (rules: `joining.py`, `starting.py`,
`stopping.py`; nouns: `members.py`, `halt.py`, `ledger.py`), `server.py` puts it on a socket. `node.py` is the launcher
that obeys it over `link.py`: `foreman.py` has one `crew.py` of processes per generation, `memory.py` is what its hello
says, `departure.py` how it goes.
Must not: import torch (it starts in tenths of a second and is independent of the user's torch).
"""
