"""Adapters of other libraries' environments to tool calls."""
