"""The commands that look at jobs and make them, one module each; `main.py` puts them into the group."""
