"""Settings of published models, as plans read them."""

import functools

from configs import pod
from launch.config.settings import Settings, read_settings


@functools.cache
def pod_settings(*model: str) -> Settings:
  """AgentRL's own config of a model, read once."""
  return read_settings(pod.get_config(*model))
