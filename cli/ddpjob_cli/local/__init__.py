"""A job on this machine: one launcher process per node on loopback, as pods would have them."""
