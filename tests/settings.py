"""The settings of config sections: their defaults, and a test's changes."""

from agentrl_jax.controller.episode import EpisodeWaits
from agentrl_jax.data.chat.pretrained import ChatConfig
from agentrl_jax.http_requests import HttpLimits
from agentrl_jax.model.compute import ComputeConfig
from agentrl_jax.model.lora import LoraConfig
from agentrl_jax.rollout.api import EngineConfig
from agentrl_jax.rollout.settings import RolloutsConfig

chat_config = ChatConfig
compute_config = ComputeConfig
engine_config = EngineConfig
lora_config = LoraConfig
rollouts_config = RolloutsConfig
COMPUTE = compute_config()
HTTP = HttpLimits()
WAITS = EpisodeWaits()
