"""The folder of a run: its config, params, checkpoints and accounts."""
