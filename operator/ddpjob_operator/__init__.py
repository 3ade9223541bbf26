"""The operator."""
