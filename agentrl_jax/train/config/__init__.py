"""The `loss` and `advantage` sections of the config, with their checks."""
