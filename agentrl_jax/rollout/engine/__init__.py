"""The rollout engine, which decodes with several policy versions at once."""
