"""Checkpoints from launcher to launcher, so that the loss of a pod costs none while another node has a copy."""
