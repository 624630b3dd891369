"""Runs an ablation: every arm with several seeds, within a budget."""
