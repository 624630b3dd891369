"""Wires: forms of calls and answers, one per API, over the same chat."""
