"""The rollout side of a run: engines and servers that answer it."""
