"""Refuses, before anything starts, samples that could not be trained on."""

from agentrl_jax.controller.episode import Sampling
from agentrl_jax.errors import ConfigError
from agentrl_jax.rollout.openai.settings import AgentsConfig
from agentrl_jax.train.config_checks import require_read


def check_sampling(sampling: Sampling, agents: AgentsConfig) -> None:
  """Raises `ConfigError` for what the learner has no log-probability of."""
  if sampling.temperature <= 0:
    raise ConfigError(
      f"sampling.temperature={sampling.temperature} must be positive: "
      "a greedy attempt has no log-probability to learn from"
    )
  if sampling.top_k or sampling.top_p < 1:
    raise ConfigError(
      f"sampling.top_k={sampling.top_k} and sampling.top_p={sampling.top_p}: "
      "training on truncated samples needs the learner to truncate alike, "
      "which it does not; set --config.sampling.top_k=0 "
      "--config.sampling.top_p=1"
    )
  require_read(
    "sampling.calls",
    sampling.calls,
    idle="free",
    is_read=not agents.play,
    why="for agents that play in place of ours (agents.port): what their calls "
    "are held to is in their own requests, by tool_choice and strict",
  )
