"""Drivers of the engine: one thread of our own, or the threads of JetStream."""
