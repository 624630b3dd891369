"""Experiments on methods, outside the wheel: code that only a study needs."""
