"""What calls the engine step by step: a thread of our own, or JetStream."""
