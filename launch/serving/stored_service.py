"""Serves params that are stored as files: a run's checkpoint, or a folder."""

import contextlib
import dataclasses
import pathlib
from collections.abc import Iterator

import ml_collections

from agentrl_jax.data.chat.pretrained import load_chat
from agentrl_jax.model import sharding
from agentrl_jax.model.hugging_face.pretrained import read_params
from agentrl_jax.model.policy import Policy
from launch.config.chat import codec_of
from launch.config.settings import Settings
from launch.serving.service import Service, serve
from launch.storage.compile_cache import compile_cache
from launch.storage.load_params import load_params
from launch.storage.run_directory import RunDirectory


@contextlib.contextmanager
def served_checkpoint(
  config: ml_collections.ConfigDict,
  settings: Settings,
  run: RunDirectory,
  stage: str,
  version: int | None = None,
) -> Iterator[Service]:
  """Serves a checkpoint of a stage, by default the last.

  Raises `CheckpointError` for a version that is not kept.
  """
  codec = codec_of(run.root, settings.chat)
  policy = Policy(settings.model, settings.compute, adaptation=settings.lora)
  one, driver = _with_one_policy_slot(settings), config.engine.driver
  with (
    compile_cache(run.root, config.compile_cache),  # the run's own programs
    serve(one, policy, codec, driver=driver) as service,
  ):
    params = load_params(settings, policy, run, stage, version)
    service.publisher.publish(params, version or 0)
    yield service


@contextlib.contextmanager
def served_folder(
  config: ml_collections.ConfigDict, settings: Settings
) -> Iterator[Service]:
  """Serves the model of `pretrained.path`, untrained and without adapters."""
  codec = load_chat(pathlib.Path(settings.pretrained), settings.chat)
  policy = Policy(settings.model, settings.compute)
  params = read_params(
    settings.pretrained,
    policy,
    sharding.make_mesh(settings.mesh, slices=settings.slices),
    dtype=settings.compute.dtype,
  )
  one, driver = _with_one_policy_slot(settings), config.engine.driver
  with serve(one, policy, codec, driver=driver) as service:
    service.publisher.publish(params, 0)
    yield service


def _with_one_policy_slot(settings: Settings) -> Settings:
  """Returns settings of an engine that serves one version."""
  engine = settings.engine
  if engine.num_policy_slots == 1:
    return settings
  same = dataclasses.replace(
    engine, slots=(max(engine.slots),), cache_tokens=()
  )
  return dataclasses.replace(settings, engine=same)
