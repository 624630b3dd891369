"""Writes a run's policy as a Hugging Face folder.

  python -m launch.export --run=runs/quickstart --to=quickstart-rl
  python -m launch.export --run=runs/adapted --to=adapters --adapters

Writes the last checkpoint of `--stage`, or that of `--step`, in the run's own
`compute.dtype` or in `--dtype`: config.json, safetensors files and the
tokenizer, for every program that reads Hugging Face models. A run that began
with a pretrained model passes on the small files of that model. Adapters are
merged, and a critic is left out. With `--adapters` the adapters are written
alone, in PEFT's format.
"""

import dataclasses
import math
import pathlib

import jax
from absl import flags
from jax.sharding import Mesh

from agentrl_jax.errors import ConfigError
from agentrl_jax.hugging_face_files import base_of
from agentrl_jax.model import sharding
from agentrl_jax.model.hugging_face.export import write_params
from agentrl_jax.model.hugging_face.peft import goes_on, write_adapters
from agentrl_jax.model.policy import Policy, num_params
from launch.config import command_line
from launch.config.chat import chat_files_of, codec_of
from launch.config.settings import Settings, read_settings
from launch.processes.terminal import plain_console
from launch.storage.load_params import load_params, load_step, split_params
from launch.storage.run_config import run_config
from launch.storage.run_directory import RunDirectory

RUN = command_line.define_run()

STAGES = ("rl", "warm_start")
DTYPES = ("bfloat16", "float16", "float32")

_TO = flags.DEFINE_string("to", None, "The folder to write.", required=True)
_STAGE = flags.DEFINE_enum("stage", "rl", STAGES, "Whose checkpoint.")
_STEP = flags.DEFINE_integer("step", None, "Which one; the last by default.")
_ADAPTERS = flags.DEFINE_bool("adapters", False, "The adapters alone.")
_DTYPE = flags.DEFINE_enum(
  "dtype", None, DTYPES, "Of the numbers; the run's compute.dtype by default."
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Exported:
  """The contents of a folder that was written."""

  num_params: int
  dtype: str
  stage: str
  step: int | None  # None: the pretrained params that the run began with

  def __str__(self) -> str:
    source = f"stage {self.stage}, step {self.step}"
    if self.step is None:
      source = f"stage {self.stage}: as pretrained, since warm_start.epochs=0"
    return f"{self.num_params:,} parameters in {self.dtype}, {source}"


def export(
  root: pathlib.Path,
  to: pathlib.Path,
  *,
  stage: str = "rl",
  step: int | None = None,
  dtype: str | None = None,
) -> Exported:
  """Writes the policy of the run at `root`; None takes the run's own dtype.

  Raises `ConfigError` or `CheckpointError` with what is wrong.
  """
  settings = read_settings(run_config(root))
  run = RunDirectory(root)
  step = load_step(settings, run, stage, step)
  dtype = dtype or settings.compute.dtype
  policy = Policy(
    settings.model, settings.compute, _mesh(settings), settings.lora
  )
  params = policy.plain(load_params(settings, policy, run, stage, step))
  codec = codec_of(root, settings.chat)
  pretrained = (
    pathlib.Path(settings.pretrained) if settings.pretrained else None
  )
  as_published = (
    pretrained is not None
    and pretrained == base_of(pretrained)
    and not settings.chat.template
  )
  write_params(
    to,
    params,
    settings.model,
    context=settings.engine.context,
    dtype=dtype,
    beside=pretrained,
    about={} if as_published else {"eos_token_id": list(codec.stop_tokens)},
    files=() if as_published else chat_files_of(root),
  )
  number = num_params({k: v for k, v in params.items() if k != "critic"})
  return Exported(num_params=number, dtype=dtype, stage=stage, step=step)


def export_adapters(
  root: pathlib.Path,
  to: pathlib.Path,
  *,
  stage: str = "rl",
  step: int | None = None,
) -> Exported:
  """Writes the adapters of the run at `root`, in float32.

  Raises `ConfigError` or `CheckpointError` with what is wrong.
  """
  settings = read_settings(run_config(root))
  if not settings.lora:
    raise ConfigError(
      f"--run={root} trained no adapters (lora.rank=0): leave --adapters out"
    )
  mesh, run = _mesh(settings), RunDirectory(root)
  step = load_step(settings, run, stage, step)
  policy = Policy(settings.model, settings.compute, mesh, settings.lora)
  whole = load_params(settings, policy, run, stage, step)
  trained, _ = split_params(settings, policy, whole)
  adapters = {stack: trained[stack] for stack in settings.model.stacks}
  base = _base(settings)
  write_adapters(to, adapters, settings.model, settings.lora, base=base)
  return Exported(
    num_params=num_params(adapters), dtype="float32", stage=stage, step=step
  )


def _base(settings: Settings) -> str:
  """Returns the model that a run's adapters can be applied to."""
  if not settings.pretrained:
    return "what the run began with"
  folder = pathlib.Path(settings.pretrained)
  base = base_of(folder)
  if base != folder and not goes_on(folder, settings.model, settings.lora):
    raise ConfigError(
      f"the run began with {folder} merged into {base}, and no folder holds "
      "the model that its adapters belong to: leave --adapters out"
    )
  return str(base)


def _mesh(settings: Settings) -> Mesh:
  """Makes a mesh of as many devices as can share the params."""
  devices = jax.devices()
  number = math.gcd(settings.model.width, len(devices))
  return sharding.make_mesh({"fsdp": number}, devices[:number])


def main() -> None:
  """Exports what the flags name."""
  to = pathlib.Path(_TO.value)
  written = _export(to)
  plain_console(soft_wrap=True).print(f"{to}: {written}")


def _export(to: pathlib.Path) -> Exported:
  assert RUN.value is not None  # app.run requires it
  root, stage, step = pathlib.Path(RUN.value), _STAGE.value, _STEP.value
  if _ADAPTERS.value:
    if _DTYPE.value not in (None, "float32"):
      raise ConfigError(
        f"--dtype={_DTYPE.value} with --adapters: adapters are trained, and "
        "written, in float32; leave --dtype out"
      )
    return export_adapters(root, to, stage=stage, step=step)
  return export(root, to, stage=stage, step=step, dtype=_DTYPE.value)


if __name__ == "__main__":
  flags.mark_flag_as_required("run")
  command_line.run(main)
