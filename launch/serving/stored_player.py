"""Serves params that are stored as files, and plays with them.

`stored_player` is for checkpoints of a run, which `served_checkpoints` serves
for any player; `pretrained_player` is for the folder that `pretrained.path`
names. Each serves within its context.
"""

import contextlib
import dataclasses
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import ml_collections

from agentrl_jax.controller.cross_policy import NEVER, CrossPolicy
from agentrl_jax.controller.episode import Sampling
from agentrl_jax.controller.player import Player, PolicyPlayer
from agentrl_jax.data.chat.codec import ChatCodec
from agentrl_jax.data.chat.pretrained import load_chat
from agentrl_jax.env.interface import Environment
from agentrl_jax.model import sharding
from agentrl_jax.model.hugging_face.pretrained import read_params
from agentrl_jax.model.policy import Policy
from agentrl_jax.rollout.api import Generator
from launch.config.chat import codec_of
from launch.config.settings import Settings
from launch.serving.service import Service, serve
from launch.storage.compile_cache import compile_cache
from launch.storage.load_params import load_params
from launch.storage.run_directory import RunDirectory


@contextlib.contextmanager
def stored_player(
  config: ml_collections.ConfigDict,
  settings: Settings,
  environments: Mapping[str, Environment],
  *,
  temperature: float,
  **chosen: Any,
) -> Iterator[Player]:
  """Plays with checkpoints that are `chosen` as in `served_checkpoints`."""
  with served_checkpoints(config, settings, **chosen) as (service, draw):
    yield _player(
      settings,
      environments,
      service.generator,
      service.codec,
      draw,
      temperature,
    )


@contextlib.contextmanager
def served_checkpoints(
  config: ml_collections.ConfigDict,
  settings: Settings,
  *,
  run: RunDirectory,
  stage: str,
  versions: Sequence[int] = (),
  weights: Sequence[float] = (),
) -> Iterator[tuple[Service, CrossPolicy]]:
  """Serves checkpoints of a stage, with a draw of one of `versions` per turn.

  () takes the last checkpoint; `weights` are of the draw, () for equal ones.
  Raises `CheckpointError` for a version that is not kept.
  """
  codec = codec_of(run.root, settings.chat)
  policy = Policy(settings.model, settings.compute, adaptation=settings.lora)
  chosen: list[int | None] = [*versions] or [None]
  served = _with_policy_slots(settings, len(chosen))
  with (
    compile_cache(run.root, config.compile_cache),  # the run's own programs
    serve(served, policy, codec, driver=config.engine.driver) as service,
  ):
    for policy_slot, version in enumerate(chosen):
      params = load_params(settings, policy, run, stage, version)
      service.publisher.publish(params, version or 0, policy_slot=policy_slot)
    draw = NEVER
    if len(chosen) > 1:
      equal = (1.0,) * len(chosen)
      draw = CrossPolicy(draw_per="turn", weights=tuple(weights) or equal)
    yield service, draw


@contextlib.contextmanager
def pretrained_player(
  config: ml_collections.ConfigDict,
  settings: Settings,
  environments: Mapping[str, Environment],
  *,
  temperature: float,
) -> Iterator[Player]:
  """Serves the model of `pretrained.path`, untrained and without adapters."""
  codec = load_chat(pathlib.Path(settings.pretrained), settings.chat)
  no_adapters = dataclasses.replace(settings.lora, rank=0)
  plain = dataclasses.replace(settings, lora=no_adapters)
  policy = Policy(plain.model, plain.compute)
  params = read_params(
    plain.pretrained,
    policy,
    sharding.make_mesh(plain.mesh, slices=plain.slices),
    dtype=plain.compute.dtype,
  )
  served = _with_policy_slots(plain, 1)
  with serve(served, policy, codec, driver=config.engine.driver) as service:
    service.publisher.publish(params, 0)
    yield _player(
      plain, environments, service.generator, codec, NEVER, temperature
    )


def _player(
  settings: Settings,
  environments: Mapping[str, Environment],
  generator: Generator,
  codec: ChatCodec,
  draw: CrossPolicy,
  temperature: float,
) -> Player:
  return PolicyPlayer(
    environments=environments,
    generator=generator,
    codec=codec,
    limits=settings.episode,
    sampling=Sampling(
      temperature=temperature, top_k=0, top_p=1.0, calls=settings.sampling.calls
    ),
    waits=settings.waits,
    subagent=settings.subagent,
    draw=draw,
  )


def _with_policy_slots(settings: Settings, number: int) -> Settings:
  """Returns settings of an engine with so many policy slots, of equal size."""
  engine = settings.engine
  if engine.num_policy_slots == number:
    return settings
  same = dataclasses.replace(
    engine, slots=(max(engine.slots),) * number, cache_tokens=()
  )
  return dataclasses.replace(settings, engine=same)
