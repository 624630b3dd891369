"""Reads Harbor's tasks: folders with task.toml, instruction.md, tests and more.

Harbor's own reader needs Python 3.12, and brings a web server, a database's
client and those of every model. So the keys of task.toml that decide how a task
is played are read here; tests compare them with Harbor's models. A task that
needs what a machine does not give is refused by one sentence.
"""

import dataclasses
import pathlib
import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import pydantic
from docker.utils.build import PatternMatcher

from agentrl_jax.errors import ConfigError
from environments.os_interaction.machines.files import FILE, File, Tree

TEST, SOLUTION = "tests/test.sh", "solution/solve.sh"
_ROOT = (None, "root", "0", 0)
# Instructions may begin with lines against their use as training data.
_CANARY = re.compile(r"\A(?:\s*(?:<!--.*canary.*-->|#.*canary.*)\n)+", re.I)
_DOWNLOADS = re.compile(
  r"\b(apt-get|apt|pip3?|npm|uv) (-\S+ )*(update|install|add|pip)\b|\buvx\b"
  r"|https?://(?!localhost|127\.|0\.0\.0\.0)"
)


class _Phase(pydantic.BaseModel):
  """Keys of [environment], [verifier], [verifier.environment] and others."""

  docker_image: str = ""
  os: str = "linux"
  cpus: pydantic.PositiveFloat | None = None
  memory_mb: pydantic.PositiveInt | None = None
  storage_mb: pydantic.PositiveInt | None = None
  memory: pydantic.ByteSize | None = None  # "2G", in older tasks
  storage: pydantic.ByteSize | None = None
  gpus: int = 0
  tpu: Any = None
  mcp_servers: list[Any] = []
  env: dict[str, str] = {}
  healthcheck: Any = None
  workdir: str = ""
  network_mode: Literal["no-network", "public", "allowlist"] | None = None
  allow_internet: bool = False
  build_timeout_sec: float = 600.0
  timeout_sec: pydantic.PositiveFloat = 600.0
  user: str | int | None = None
  environment_mode: Literal["shared", "separate"] | None = None
  environment: "_Phase | None" = None
  collect: list[Any] = []


class _Config(pydantic.BaseModel):
  environment: _Phase = _Phase()
  verifier: _Phase = _Phase()
  agent: _Phase = _Phase()
  solution: _Phase = _Phase()
  artifacts: list[str | dict[str, Any]] = []
  steps: list[Any] = []


@dataclasses.dataclass(frozen=True)
class MachineRecipe:
  """An image, or the Dockerfile and the files that make one."""

  image: str  # "" if it has to be made
  files: Tree  # by relative path, with the Dockerfile
  env: Mapping[str, str]
  workdir: str  # "" is that of the image
  build_limit_s: float

  @property
  def dockerfile(self) -> str:
    """Text of the Dockerfile."""
    return text_of(self.files["Dockerfile"])


@dataclasses.dataclass(frozen=True)
class HarborTask:
  """One task. Paths of `tests` and `solution` are relative to their folders."""

  name: str
  instruction: str
  machine: MachineRecipe
  verifier: MachineRecipe | None  # None: tests read all that the policy wrote
  artifacts: tuple[str, ...]  # paths that tests on a `verifier` machine read
  tests: Tree
  solution: Tree
  test_env: Mapping[str, str]
  test_limit_s: float
  limits: Mapping[str, float]  # of `MachineLimits`, as far as given


def read_folder(folder: pathlib.Path) -> Tree:
  """Reads the files of a task by relative path. Raises `ConfigError`."""
  files = {}
  for path in sorted(folder.rglob("*")):
    if path.is_symlink():
      raise ConfigError(f"{str(path)!r} is a link; copy the file into the task")
    if path.is_file():
      mode = 0o755 if path.stat().st_mode & 0o100 else 0o644
      name = path.relative_to(folder).as_posix()
      files[name] = File(FILE, mode, 0, 0, path.read_bytes())
  return files


def make_task(name: str, files: Tree, *, network: bool = False) -> HarborTask:
  """Makes a task of its files. Raises `ConfigError` with one sentence."""
  config = _read_config(name, files)
  if reasons := [
    *_needs(config, files),
    *_network_needs(config, files, network),
  ]:
    raise ConfigError(f"Harbor's task {name!r} {'; it '.join(reasons)}")
  machine, verifier, own = config.environment, config.verifier, None
  if _is_separate(verifier):
    folder = "tests" if "tests/Dockerfile" in files else "environment"
    own = _recipe(name, verifier.environment or machine, below(files, folder))
  given = {
    "cpus": machine.cpus,
    "memory_mb": machine.memory_mb or _megabytes(machine.memory),
    "disk_mb": machine.storage_mb or _megabytes(machine.storage),
  }
  paths = [a if isinstance(a, str) else a["source"] for a in config.artifacts]
  return HarborTask(
    name=name,
    instruction=_CANARY.sub("", text_of(files["instruction.md"])).strip(),
    machine=_recipe(name, machine, below(files, "environment")),
    verifier=own,
    artifacts=tuple(paths),
    tests=below(files, "tests"),
    solution=below(files, "solution"),
    test_env=verifier.env,
    test_limit_s=verifier.timeout_sec,
    limits={key: value for key, value in given.items() if value},
  )


def below(files: Tree, folder: str) -> Tree:
  """Returns the files below a folder, by their paths in it."""
  return {
    path.removeprefix(f"{folder}/"): file
    for path, file in files.items()
    if path.startswith(f"{folder}/")
  }


def text_of(file: File) -> str:
  """Returns a file as text; bytes that are not UTF-8 are replaced."""
  return file.content.decode(errors="replace")


def _read_config(name: str, files: Tree) -> _Config:
  for path in ("task.toml", "instruction.md", TEST):
    if path not in files:
      raise ConfigError(f"Harbor's task {name!r} has no {path}")
  try:
    return _Config.model_validate(tomllib.loads(text_of(files["task.toml"])))
  except tomllib.TOMLDecodeError as error:
    raise ConfigError(f"task.toml of {name!r} is no TOML: {error}") from error
  except pydantic.ValidationError as error:
    first = error.errors()[0]
    where = ".".join(map(str, first["loc"]))
    raise ConfigError(
      f"task.toml of {name!r}: {where}: {first['msg']}, found "
      f"{first['input']!r:.80}"
    ) from error


def _needs(config: _Config, files: Tree) -> Iterator[str]:
  """Yields needs that no machine meets, as the ends of a sentence."""
  machines = [config.environment, config.verifier.environment or _Phase()]
  phases = [*machines, config.verifier, config.agent, config.solution]
  services = {a.get("service") for a in config.artifacts if isinstance(a, dict)}
  is_separate = _is_separate(config.verifier)
  needs = {
    "has several steps": config.steps,
    "needs Windows": any(m.os.lower() != "linux" for m in machines),
    "needs a GPU": any(m.gpus for m in machines),
    "needs a TPU": any(m.tpu for m in machines),
    "needs several containers": services - {None, "main"}
    or any(re.search(r"/(docker-)?compose\.ya?ml$", path) for path in files),
    "needs MCP servers": any(m.mcp_servers for m in machines),
    "waits for a service (healthcheck)": any(m.healthcheck for m in machines),
    "runs commands before its tests (collect)": config.verifier.collect,
    "begins with a trajectory.json": "trajectory.json" in files,
    "runs as another user than root": any(p.user not in _ROOT for p in phases),
    "takes variables of its host (${...})": any(
      value.startswith("${") for p in phases for value in p.env.values()
    ),
    'has tests/Dockerfile without environment_mode = "separate"': (
      "tests/Dockerfile" in files and not is_separate
    ),
    "sets variables for its solution": config.solution.env,
  }
  yield from (need for need, is_there in needs.items() if is_there)


def _network_needs(
  config: _Config, files: Tree, network: bool
) -> Iterator[str]:
  """Yields needs of a network; most tasks name none, and need none."""
  phases = [config.environment, config.verifier, config.agent]
  modes = {phase.network_mode for phase in phases}
  if "allowlist" in modes:
    yield "allows some hosts only (allowlist), which no machine can hold to"
  elif not network and ("public" in modes or config.environment.allow_internet):
    yield "needs a network: set network=True, if policies may have one"
  elif not network and (hit := _DOWNLOADS.search(text_of(files[TEST]))):
    yield (
      f"downloads in {TEST} ({hit[0]!r}): build it into the image, or set "
      "network=True, if policies may have one"
    )


def _is_separate(verifier: _Phase) -> bool:
  inferred = "separate" if verifier.environment is not None else "shared"
  return (verifier.environment_mode or inferred) == "separate"


def _sent(files: Tree) -> Tree:
  """Returns the files that a build context's .dockerignore leaves in it."""
  empty = File(FILE, 0o644, 0, 0, b"")
  lines = text_of(files.get(".dockerignore", empty)).splitlines()
  rules = [line.strip() for line in lines if not line.startswith("#")]
  # Of a str, whatever the types say.
  ignored: Any = PatternMatcher([*rules, "!Dockerfile"]).matches
  return {path: file for path, file in files.items() if not ignored(path)}


def _recipe(name: str, machine: _Phase, files: Tree) -> MachineRecipe:
  if not machine.docker_image and "Dockerfile" not in files:
    raise ConfigError(
      f"Harbor's task {name!r} has neither a Dockerfile nor a docker_image"
    )
  return MachineRecipe(
    image=machine.docker_image,
    files={} if machine.docker_image else _sent(files),
    env=machine.env,
    workdir=machine.workdir,
    build_limit_s=machine.build_timeout_sec,
  )


def _megabytes(size: int | None) -> int | None:
  """Returns "2G", which pydantic reads as 2e9 bytes, as Harbor's 2048."""
  return None if size is None else int(size / 1e9 * 1024)
