"""A run as one page: what happened, how fast it was, and where the time went."""
