"""The training loop of `task` mode: `trainer.py` is the page to read, each other module is one thing it uses."""
