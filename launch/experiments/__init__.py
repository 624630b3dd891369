"""Plans of experiments: checked before a sweep, and compared with it after."""
