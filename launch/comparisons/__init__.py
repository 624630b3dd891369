"""Compares runs: arms of a sweep over seeds, with intervals and tests."""
