"""Which bucket size and gradient layout makes the steps of a job shortest, by trying them."""
