"""The engine: decodes many requests at once, under several policy versions."""
