"""Shows in a browser what a run did: its trajectories, and its curves."""
