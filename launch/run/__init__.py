"""The stages of a run, from demonstrations to evaluation."""
