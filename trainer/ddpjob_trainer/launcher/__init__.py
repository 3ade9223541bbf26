"""The main process of every pod: starts the workers, and in pod 0 decides for all (the coordinator).

How it is laid out: `coordinator.py` is the pure state machine (`members.py`, `halt.py` are its nouns), `server.py` puts
it on a socket; `node.py` is the launcher that obeys it over `link.py`, with one `crew.py` of processes per generation.
Must not: import torch (it starts in tenths of a second and is independent of the user's torch).
"""
