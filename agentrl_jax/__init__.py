"""Trains language-model agents on many tool-calling tasks, on JAX."""
