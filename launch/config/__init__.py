"""Reads a config and refuses, before anything starts, one that cannot work."""
