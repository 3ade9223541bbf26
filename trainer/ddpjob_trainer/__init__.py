"""What runs in the pods: launcher, instrumentation, training loop."""
