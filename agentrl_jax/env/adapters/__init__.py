"""Environments of other libraries, played by tool calls."""
