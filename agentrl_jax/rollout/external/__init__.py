"""Engines of other projects, vLLM and SGLang, as rollout servers."""
