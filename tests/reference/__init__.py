"""The losses again, as the papers write them: float64, one number at a time.

Slow and plain on purpose. Nothing here imports jax or `agentrl_jax`.
"""
