"""Trains language-model agents on many tool-calling tasks, on JAX."""

import sys

from agentrl_jax.renamed import MovedModules

sys.meta_path.append(MovedModules())  # asked after all others
