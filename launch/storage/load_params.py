"""Loads the params of a run's stage, or those that the run begins with."""

import dataclasses
import pathlib

import jax
from jax.sharding import Mesh

from agentrl_jax.errors import ConfigError
from agentrl_jax.model import sharding
from agentrl_jax.model.hugging_face.config import read_model
from agentrl_jax.model.hugging_face.pretrained import read_params
from agentrl_jax.model.policy import Params, Policy
from agentrl_jax.train.learner import Learner, make_optimizer
from agentrl_jax.train.objective import supervised_objective
from agentrl_jax.train.weights.checkpoint import Checkpoints
from agentrl_jax.train.weights.copying import copying
from launch.config.architecture import read_architecture
from launch.config.checks import check_mesh
from launch.config.settings import Settings, read_settings
from launch.storage.config_paths import require_model
from launch.storage.run_config import is_run, run_config
from launch.storage.run_directory import RunDirectory


def fresh_params(settings: Settings, policy: Policy) -> Params:
  """Returns untrained params on the policy's mesh; the same on every mesh."""

  def make() -> Params:
    params = policy.init(jax.random.key(settings.seed))
    if not settings.warm_start.copy_gain:
      return params
    return copying(params, settings.warm_start.copy_gain)

  if policy.mesh is None:
    return make()
  shardings = sharding.param_shardings(policy.abstract_params(), policy.mesh)
  made: Params = jax.jit(make, out_shardings=shardings)()
  return made


def first_params(settings: Settings, policy: Policy) -> Params:
  """Returns the params that a run begins with: pretrained or untrained.

  Raises `ConfigError` or `CheckpointError` if the pretrained files are not of
  the policy's model, or incomplete.
  """
  if not settings.pretrained:
    return fresh_params(settings, policy)
  mesh = policy.mesh or sharding.make_mesh(
    settings.mesh, slices=settings.slices
  )
  # What stays as it is need be no more exact than what is computed with it.
  dtype = settings.compute.dtype if settings.lora else "float32"
  return read_params(settings.pretrained, policy, mesh, dtype=dtype)


def with_teacher(settings: Settings) -> Settings:
  """Returns the settings with the model of `reference.path`, if it is set.

  Raises `ConfigError` for a folder that is neither a run's nor a model's, and
  for a model that cannot be split as the policy is.
  """
  path, version = settings.reference.path, settings.reference.version
  if not path:
    return settings
  folder = pathlib.Path(path)
  try:
    if is_run(folder):
      model = read_architecture(run_config(folder))
    elif version < 0:
      model, _ = read_model(folder)
    else:
      raise ConfigError(
        f"reference.version={version} is one of a run, and this has no "
        "config.yaml: name a run's folder, or leave the version out"
      )
    check_mesh(settings.mesh, settings.batch, model, settings.compute)
  except ConfigError as error:
    raise ConfigError(
      f"reference.path={path} must be the folder of a run, or of a model that "
      f"can be split over the policy's devices: {error}"
    ) from error
  return dataclasses.replace(settings, teacher=model)


def load_reference(
  settings: Settings, mesh: Mesh | None
) -> tuple[Policy, Params]:
  """Loads the teacher of `reference.path` on a mesh; adapters are merged.

  Raises `ConfigError` or `CheckpointError` for files that are not there, or of
  another model.
  """
  folder = pathlib.Path(settings.reference.path)
  model = with_teacher(settings).reference_model
  policy = Policy(model, settings.compute, mesh)
  if not is_run(folder):
    place = mesh or sharding.make_mesh(settings.mesh, slices=settings.slices)
    dtype = settings.compute.dtype
    return policy, read_params(str(folder), policy, place, dtype=dtype)
  own = read_settings(run_config(folder))
  trained = Policy(own.model, settings.compute, mesh, own.lora)
  version = settings.reference.version
  params = load_params(
    own, trained, RunDirectory(folder), "rl", None if version < 0 else version
  )
  return policy, trained.plain(params)


def split_params(
  settings: Settings, policy: Policy, params: Params
) -> tuple[Params, Params | None]:
  """Splits params into those that are trained and those that stay frozen."""
  return policy.split(params, jax.random.key(settings.seed))


def load_step(
  settings: Settings, run: RunDirectory, stage: str, step: int | None = None
) -> int | None:
  """Returns the step that `load_params` takes, or None for the first params.

  Without a `step`, RL has its best one, if that was chosen, or its last one.

  Raises `CheckpointError` if the stage has no checkpoint, or none of `step`,
  and `ConfigError` for a step of a stage that wrote none.
  """
  if stage == "warm_start" and not settings.warm_start.epochs:
    if step is not None:
      raise ConfigError(
        f"--step={step} of --stage=warm_start is not there: warm_start.epochs="
        "0, so this run began with the pretrained params; leave --step out to "
        "take those"
      )
    return None
  checkpoints = Checkpoints(run.checkpoints(stage), keep=2)
  try:
    return checkpoints.chosen(run.final_step(stage) if step is None else step)
  finally:
    checkpoints.close()


def load_params(
  settings: Settings,
  policy: Policy,
  run: RunDirectory,
  stage: str,
  step: int | None = None,
) -> Params:
  """Loads a stage's checkpoint, that of `load_step` if no step is named.

  A warm start of no epochs wrote none: then the first params are returned.
  Raises `CheckpointError` if there is none, or one of another model.
  """
  if stage == "warm_start" and not settings.warm_start.epochs:
    require_model(settings.pretrained, run.root)
    return first_params(settings, policy)
  learner = Learner(
    policy,
    supervised_objective(policy, settings.loss),
    # Every stage's optimizer has the same state, whatever its schedule.
    make_optimizer(settings.optimizer, 1),
    policy.mesh or sharding.make_mesh(settings.mesh, slices=settings.slices),
  )
  checkpoints = Checkpoints(
    run.checkpoints(stage), keep=2, owner=run.owner(stage)
  )
  try:
    step = run.final_step(stage) if step is None else step
    params = checkpoints.restore_params(learner.abstract_state(), step)
  finally:
    checkpoints.close()
  if not settings.lora:
    return params
  require_model(settings.pretrained, run.root)
  base = first_params(settings, policy)
  return policy.whole(params, split_params(settings, policy, base)[1])
