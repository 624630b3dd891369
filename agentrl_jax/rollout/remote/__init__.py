"""Rollout servers of this framework, as seen from the learner."""
