"""Commands, each `python -m launch.NAME`, and what they share.

The setting of malloc must come before any other import, so it stands here.
"""

import sys

from agentrl_jax.garbage import keep_freed_memory

COMPUTING = ("train", "evaluate", "serve", "serve_rollouts")

if any(f"launch.{name}" in sys.orig_argv for name in COMPUTING):
  keep_freed_memory()
