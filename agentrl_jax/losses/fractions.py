"""Settings that are shares of a whole: discounts, traces, decays, quotas."""

from agentrl_jax.losses.arguments import require


def require_fraction(name: str, value: object) -> None:
  """Raises a ValueError for a plain number outside [0, 1]."""
  require(name, value, "from 0 to 1", lambda x: 0 <= x <= 1)
