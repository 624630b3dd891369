"""Machines of tasks: images that are built once, or steps on a base.

A Dockerfile `FROM` one of the option's `bases` is carried out on a started
machine, by either engine: WORKDIR, ENV, COPY and RUN in their plain forms. Any
other is built by the Docker engine when its task is first played, and kept by
the content of its folder; the sandbox has no images and refuses such a task.
"""

import asyncio
import contextlib
import dataclasses
import hashlib
import io
import posixpath
import re
import shlex
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import docker
import docker.errors

from agentrl_jax.errors import ConfigError, EnvironmentFault
from agentrl_jax.service.docker import engine as engines
from environments.harbor.task import HarborTask, MachineRecipe
from environments.options import HarborOptions, MachineLimits
from environments.os_interaction.judging.judge import SET_UP_TIMEOUT_S
from environments.os_interaction.machines.files import (
  Changes,
  File,
  Tree,
  Unreadable,
  write_archive,
)
from environments.os_interaction.machines.machine import (
  HOME,
  PATH,
  Machine,
  MachineLost,
)
from environments.os_interaction.machines.started import (
  MachineSource,
  StartedMachine,
  shielded,
)

REPOSITORY = "agentrl_jax/harbor"  # of built images
LOGS = ("/logs/agent", "/logs/artifacts", "/logs/verifier")
_DESCRIBES = ("FROM", "CMD", "ENTRYPOINT", "LABEL", "EXPOSE")


@dataclasses.dataclass(frozen=True)
class SetUpPlan:
  """Start of a task's machines: an image, then files and scripts in order."""

  image: str
  env: Mapping[str, str]
  workdir: str
  steps: tuple[Tree | str, ...] = ()
  limits: MachineLimits | None = None  # None: those of the options

  @property
  def first_script(self) -> str:
    """Script that a shell begins with: variables and working folder."""
    words = [f"{k}={shlex.quote(v)}" for k, v in self.env.items()]
    return f"export {' '.join(words)}; cd {shlex.quote(self.workdir)}"


class MachinePlanner:
  """Plans how machines of tasks are set up, and starts them."""

  def __init__(self, machines: MachineSource, options: HarborOptions):
    self._machines, self._options = machines, options
    self._building = asyncio.Lock()  # one image at a time
    self._configs: dict[str, Mapping[str, Any]] = {}  # of images, by their tag

  def require_playable(self, task: HarborTask) -> None:
    """Raises `ConfigError` for a machine that the engine cannot give."""
    for recipe in filter(None, (task.machine, task.verifier)):
      base = recipe.image or _base_of(recipe)
      if self._is_laid_out(recipe):
        lay_out(task.name, recipe)
      elif not self._machines.engine.has_images:
        raise ConfigError(
          f"Harbor's task {task.name!r} needs the image {base!r}, and all "
          "sandboxes have one root folder: set engine='docker', or name the "
          "image in `bases` if `rootfs` was made of it"
        )

  async def plan_of(self, task: HarborTask, recipe: MachineRecipe) -> SetUpPlan:
    """Returns the plan of a recipe; builds its image if it has to."""
    if self._is_laid_out(recipe):
      plan = lay_out(task.name, recipe)
    else:
      async with self._building:
        image, config = await self._image(task, recipe)
      words = (word.partition("=") for word in config.get("Env") or ())
      env = {name: value for name, _, value in words}
      env = {"PATH": PATH, "HOME": HOME, **env, **recipe.env}
      workdir = recipe.workdir or config.get("WorkingDir") or "/"
      plan = SetUpPlan(image, env, workdir)
    fields = dataclasses.fields(MachineLimits)
    own = {f.name: getattr(self._options, f.name) for f in fields}
    limits = MachineLimits(**{**own, **task.limits}) if task.limits else None
    return dataclasses.replace(plan, limits=limits)

  async def start(self, plan: SetUpPlan) -> StartedMachine:
    """Starts a machine with a shell, and carries out the steps."""
    started = await self._machines.take(plan.image, plan.limits)
    try:
      await _carry_out(plan, started.machine)
      await started.machine.seal()
      await started.shell.begin(plan.first_script)
    except BaseException as error:
      await shielded(started.remove())
      if isinstance(error, MachineLost):
        raise EnvironmentFault(f"a set-up lost its machine: {error}") from error
      raise
    return started

  @contextlib.asynccontextmanager
  async def fresh(
    self, plan: SetUpPlan, *, with_steps: bool
  ) -> AsyncIterator[Machine]:
    """Starts a machine without a shell, for a judge."""
    async with self._machines.fresh(plan.image, plan.limits) as machine:
      if with_steps:
        await _carry_out(plan, machine)
      yield machine

  def _is_laid_out(self, recipe: MachineRecipe) -> bool:
    return not recipe.image and _base_of(recipe) in self._options.bases

  async def _image(
    self, task: HarborTask, recipe: MachineRecipe
  ) -> tuple[str, Mapping[str, Any]]:
    context = write_archive(recipe.files)
    digest = hashlib.sha256(context).hexdigest()[:16]
    tag = recipe.image or f"{REPOSITORY}:{digest}"
    if tag not in self._configs:
      self._configs[tag] = await engines.to_the_end(
        _build, task.name, recipe, tag, context
      )
    return tag, self._configs[tag]


def lay_out(name: str, recipe: MachineRecipe) -> SetUpPlan:
  """Reads a Dockerfile as steps on its base. Raises `ConfigError`."""
  env, workdir = {"PATH": PATH, "HOME": HOME}, "/"
  steps: list[Tree | str] = []
  for instruction, value in _instructions(recipe.dockerfile):
    is_plain = not value.startswith(("[", "--", "<<"))
    try:
      words = shlex.split(value)
    except ValueError:
      words = [value]
    if instruction == "RUN" and is_plain:
      exports = " ".join(f"{k}={shlex.quote(v)}" for k, v in env.items())
      steps.append(f"export {exports}; cd {shlex.quote(workdir)} && {value}")
    elif instruction == "WORKDIR" and "$" not in value:
      workdir = posixpath.join(workdir, value)
      steps.append(f"mkdir -p {shlex.quote(workdir)}")
    elif instruction == "ENV" and all("=" in w and "$" not in w for w in words):
      env |= {k: v for k, _, v in (word.partition("=") for word in words)}
    elif instruction == "COPY" and is_plain and "$" not in value:
      steps.append(_copied(name, recipe.files, words, workdir))
    elif instruction not in _DESCRIBES:
      raise _not_carried_out(name, f"{instruction} {value}")
  workdir = recipe.workdir or workdir
  return SetUpPlan("default", {**env, **recipe.env}, workdir, tuple(steps))


def _copied(
  name: str, files: Tree, words: list[str], workdir: str
) -> dict[str, File]:
  """Returns files of the context by the paths that COPY gives them."""
  *sources, target = words
  into, copied = posixpath.join(workdir, target), {}
  is_folder = len(sources) > 1 or target.endswith(("/", ".")) or into == workdir
  for source in map(posixpath.normpath, sources):
    prefix = "" if source == "." else f"{source}/"
    tree = {p: f for p, f in files.items() if p.startswith(prefix)}
    if source in files:
      path = posixpath.join(into, posixpath.basename(source))
      copied[path if is_folder else into] = files[source]
    elif tree:
      copied |= {f"{into}/{p.removeprefix(prefix)}": f for p, f in tree.items()}
    else:
      raise _not_carried_out(name, f"COPY {source}, which is no file of it")
  return {posixpath.normpath(path): file for path, file in copied.items()}


def _not_carried_out(name: str, text: str) -> ConfigError:
  return ConfigError(
    f"the Dockerfile of Harbor's task {name!r} has {text[:80]!r}, and a "
    "started machine carries out plain WORKDIR, ENV, COPY and RUN; take the "
    "image after FROM out of `bases`, so that Docker builds it"
  )


def _base_of(recipe: MachineRecipe) -> str:
  """Returns the image after FROM; of several stages, their names."""
  lines = _instructions(recipe.dockerfile)
  images = [
    value.split()[0] for name, value in lines if name == "FROM" and value
  ]
  return ", ".join(images).removesuffix(":latest")


def _instructions(dockerfile: str) -> Iterator[tuple[str, str]]:
  """Yields instructions and their values; comments and breaks are removed."""
  text = re.sub(r"^\s*#.*\n", "", dockerfile, flags=re.MULTILINE)
  for line in re.sub(r"\\\s*\n", " ", text).splitlines():
    if line.strip():
      instruction, _, value = line.strip().partition(" ")
      yield instruction.upper(), value.strip()


async def _carry_out(plan: SetUpPlan, machine: Machine) -> None:
  """Raises `EnvironmentFault` for a script that fails."""
  folders = shlex.join([*LOGS, plan.workdir])
  for step in (*plan.steps, f"mkdir -p {folders}"):
    try:
      if not isinstance(step, str):
        await machine.apply_changes(Changes(step))
        continue
    except Unreadable as error:
      raise EnvironmentFault(f"a task's files do not fit: {error}") from error
    done = await machine.run(["sh", "-c", step], limit_s=SET_UP_TIMEOUT_S)
    if done.code != 0:
      raise EnvironmentFault(
        f"{step[-200:]!r} ended with code {done.code} (None: not within "
        f"{SET_UP_TIMEOUT_S:g} s): {done.stderr[-300:]!r}"
      )


def _build(
  name: str, recipe: MachineRecipe, tag: str, context: bytes
) -> Mapping[str, Any]:
  """Builds or pulls an image, unless it is there; returns its settings."""
  with engines.connect() as engine:
    try:
      if not engine.images.list(tag):
        if recipe.image:
          engine.images.pull(tag)
        else:
          engine.images.build(
            fileobj=io.BytesIO(context),
            custom_context=True,
            tag=tag,
            rm=True,
            forcerm=True,
            timeout=int(recipe.build_limit_s),
          )
      config: Mapping[str, Any] = engine.images.get(tag).attrs["Config"]
    except (docker.errors.DockerException, OSError) as error:
      raise ConfigError(
        f"the engine has no image for Harbor's task {name!r}: {error}"
      ) from error
  return config
