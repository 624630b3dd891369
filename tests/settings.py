"""The settings of config sections: their defaults, and a test's changes."""

import functools

from agentrl_jax.controller.episode import EpisodeWaits
from agentrl_jax.data.chat.pretrained import ChatConfig
from agentrl_jax.http_requests import HttpLimits
from agentrl_jax.model.compute import ComputeConfig
from agentrl_jax.model.lora import LoraConfig
from agentrl_jax.rollout.api import EngineConfig
from agentrl_jax.rollout.settings import RolloutsConfig
from configs.base import defaults

chat_config = functools.partial(defaults, ChatConfig, "chat")
compute_config = functools.partial(defaults, ComputeConfig, "compute")
engine_config = functools.partial(defaults, EngineConfig, "engine")
lora_config = functools.partial(defaults, LoraConfig, "lora")
rollouts_config = functools.partial(defaults, RolloutsConfig, "rollouts")
COMPUTE = compute_config()
HTTP = defaults(HttpLimits, "http")
WAITS = defaults(EpisodeWaits, "waits")
