"""Drivers of the engine: a thread of our own, or JetStream's loops."""
