"""The keys that few people set, by room; `configs/base.py` has the others."""
