"""OpenAI's API before a generator, and episodes that agents play over it."""
