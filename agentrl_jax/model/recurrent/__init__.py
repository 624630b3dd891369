"""Layers that remember by a state of fixed size in place of a cache of tokens.

`delta_rule` is the state of Qwen3-Next and Qwen3.5, `convolution` the short
window before it, and `ancestry` says which tokens of a packed row go before
which.
"""
