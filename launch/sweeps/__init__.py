"""Runs an ablation: every arm with several seeds, on some cores."""
