"""Plans of experiments, their checks, and the pages of what was found."""
