"""Speed, as ratios against a peer or a limit.

Our processes keep freed memory, as the commands of `launch` do.
"""

from agentrl_jax.garbage import keep_freed_memory

keep_freed_memory()
