"""A generator behind HTTP, and the snapshots that it serves."""
