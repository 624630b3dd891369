"""The building stands on its ground floor: imports only ever point down.

Reads every import in the source, wherever in a file it stands, and starts the
parts that promise to need no jax in a process of their own.
"""

import ast
import pathlib
import subprocess
import sys

import pytest
from absl.testing import parameterized

pytestmark = pytest.mark.smoke

ROOT = pathlib.Path(__file__).parents[1]
PACKAGE = "agentrl_jax"

# What every room of the rollout floor stands on.
ROLLOUT_GROUND = {"agentrl_jax.rollout.api", "agentrl_jax.rollout.settings"}
# What every room of the environments' floor stands on.
ENV_GROUND = {
  f"agentrl_jax.env.{path.stem}"
  for path in (ROOT / PACKAGE / "env").glob("*.py")
  if path.stem != "__init__"
}
# What every part of AgentRL's protocol stands on.
SERVICE_GROUND = {
  "agentrl_jax.data",
  "agentrl_jax.env",
  "agentrl_jax.service.protocol",
}
# The rooms of `launch`, from the ground up: each may import those before it.
# The commands stand above all of them, and are imported by nobody.
LAUNCH_ROOMS = (
  "launch.processes",
  "launch.config",
  "launch.reports",
  "launch.storage",
  "launch.viewing",
  "launch.serving",
  "launch.run",
  "launch.planning",
  "launch.sweeps",
  "launch.comparisons",
)
LIBRARY = {"agentrl_jax", "environments", "configs"}
# A floor may import itself, what EVERYONE_MAY, and what is named here. Of those
# that a file is in the first counts, so rooms stand before their floor.
MAY_IMPORT = {
  "agentrl_jax.losses": set(),
  "agentrl_jax.model": set(),
  "agentrl_jax.data": set(),
  **{ground: {"agentrl_jax.data", *ENV_GROUND} for ground in ENV_GROUND},
  "agentrl_jax.env.adapters": {"agentrl_jax.data", *ENV_GROUND},
  "agentrl_jax.env": {"agentrl_jax.data"},
  "agentrl_jax.service.protocol": {"agentrl_jax.data", "agentrl_jax.env"},
  "agentrl_jax.service.worker": SERVICE_GROUND,
  "agentrl_jax.service.remote": SERVICE_GROUND,
  "agentrl_jax.service.docker": {
    "agentrl_jax.service.remote",
    "agentrl_jax.service.worker",
    *SERVICE_GROUND,
  },
  "agentrl_jax.service.controller": SERVICE_GROUND,
  "agentrl_jax.service": set(),
  **{
    ground: {"agentrl_jax.model", "agentrl_jax.data", *ROLLOUT_GROUND}
    for ground in ROLLOUT_GROUND
  },
  "agentrl_jax.rollout.engine": {
    "agentrl_jax.model",
    "agentrl_jax.data",
    *ROLLOUT_GROUND,
  },
  "agentrl_jax.rollout.drivers": {
    "agentrl_jax.data",
    "agentrl_jax.rollout.engine",
    *ROLLOUT_GROUND,
  },
  "agentrl_jax.rollout.remote": {"agentrl_jax.data", *ROLLOUT_GROUND},
  "agentrl_jax.rollout.external": {
    "agentrl_jax.data",
    "agentrl_jax.rollout.remote",
    *ROLLOUT_GROUND,
  },
  "agentrl_jax.rollout.server": {
    "agentrl_jax.model",
    "agentrl_jax.data",
    "agentrl_jax.rollout.engine",
    "agentrl_jax.rollout.remote",
    *ROLLOUT_GROUND,
  },
  "agentrl_jax.rollout.openai": {
    "agentrl_jax.data",
    "agentrl_jax.rollout.engine",
    "agentrl_jax.rollout.remote",
    "agentrl_jax.rollout.server",
    *ROLLOUT_GROUND,
  },
  "agentrl_jax.rollout": {"agentrl_jax.model", "agentrl_jax.data"},
  "agentrl_jax.controller": {
    "agentrl_jax.data",
    "agentrl_jax.env",
    "agentrl_jax.rollout.api",
  },
  "agentrl_jax.train": {
    "agentrl_jax.losses",
    "agentrl_jax.model",
    "agentrl_jax.data",
  },
  "environments": {
    "agentrl_jax.data",
    "agentrl_jax.env",
    "agentrl_jax.service.docker",
  },
  "configs": {"agentrl_jax", "environments"},
  **{
    room: {*LIBRARY, *LAUNCH_ROOMS[:place]}
    for place, room in enumerate(LAUNCH_ROOMS)
  },
}
EVERYONE_MAY = {
  "agentrl_jax.bearer_token",
  "agentrl_jax.errors",
  "agentrl_jax.files",
  "agentrl_jax.garbage",
  "agentrl_jax.http_requests",
  "agentrl_jax.hugging_face_files",
  "agentrl_jax.keys",
  "agentrl_jax.logs",
  "agentrl_jax.named_objects",
  "agentrl_jax.tracing",
  "agentrl_jax.waits",
}
OURS = (
  "agentrl_jax",
  "environments",
  "configs",
  "launch",
  "bench",
  "studies",
  "tests",
)

# What stands in these files can be imported where there is no jax.
WITHOUT_JAX = (
  "agentrl_jax/bearer_token.py",
  "agentrl_jax/errors.py",
  "agentrl_jax/http_requests.py",
  "agentrl_jax/keys.py",
  "agentrl_jax/named_objects.py",
  "agentrl_jax/tracing.py",
  "agentrl_jax/waits.py",
  "agentrl_jax/data/**/*.py",
  "agentrl_jax/env/**/*.py",
  "agentrl_jax/controller/**/*.py",
  "agentrl_jax/service/**/*.py",
  "agentrl_jax/rollout/api.py",
  "agentrl_jax/rollout/external/*.py",
  "agentrl_jax/rollout/remote/generator.py",
  "agentrl_jax/rollout/server/app.py",
  "environments/**/*.py",
  "launch/reports/metrics_file.py",
)
BUT_WITH_JAX = {"agentrl_jax.data.batch"}
# Works without, but imports grain, which loads jax where it finds it.
ASK_FOR_JAX = {"agentrl_jax.controller.task_source"}
HEAVY = {"jax", "flax", "optax", "orbax", "torch"}
# A machine that plays environments installs these rooms' packages, and none of
# the learner's.
OF_WORKERS = (
  "agentrl_jax.data",
  "agentrl_jax.env",
  "agentrl_jax.service",
  "environments",
)
OF_LEARNERS = HEAVY | {"jaxlib", "jetstream", "grain"}


def imports_of(source: str) -> set[str]:
  """Full names of what a source imports; a relative one starts with a dot."""
  found = set()
  for node in ast.walk(ast.parse(source)):
    if isinstance(node, ast.Import):
      found |= {alias.name for alias in node.names}
    elif isinstance(node, ast.ImportFrom):
      module = "." * node.level + (node.module or "")
      found |= {f"{module}.{alias.name}" for alias in node.names}
  return found


def is_within(name: str, package: str) -> bool:
  """Checks that a dotted name is the package, or something in it."""
  return name == package or name.startswith(f"{package}.")


def floor_of(path: pathlib.Path) -> str | None:
  """The floor that a file belongs to; None for the top and the ground."""
  module = module_of(path)
  return next((f for f in MAY_IMPORT if is_within(module, f)), None)


def module_of(path: pathlib.Path) -> str:
  """The dotted name that a file is imported by."""
  parts = path.relative_to(ROOT).with_suffix("").parts
  return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def upward_imports(floor: str, source: str) -> set[str]:
  """Imports of a file of that floor that are not allowed."""
  allowed = MAY_IMPORT[floor] | EVERYONE_MAY | {floor}
  return {
    name
    for name in imports_of(source)
    if name.startswith(".")
    or (
      name.split(".")[0] in OURS
      and not any(is_within(name, package) for package in allowed)
    )
  }


def modules_without_jax() -> set[str]:
  """The dotted names of the files that need no jax."""
  return {
    module_of(path) for pattern in WITHOUT_JAX for path in ROOT.glob(pattern)
  } - BUT_WITH_JAX


def packages_loaded_by(modules: set[str]) -> set[str]:
  """The packages in a fresh process after these imports."""
  program = "\n".join(
    [
      "import importlib, sys",
      *(f"importlib.import_module({name!r})" for name in sorted(modules)),
      "print(*{name.partition('.')[0] for name in sys.modules})",
    ]
  )
  return set(run_program(program).split())


def packages_asked_for(modules: set[str], absent: set[str]) -> set[str]:
  """Those of `absent` that these imports ask for, where none is installed."""
  return set(run_program(ASKED, repr(absent), *sorted(modules)).split())


ASKED = """
import importlib, sys

absent, asked = eval(sys.argv[1]), set()


class Absent:
  def find_spec(self, name, path=None, target=None):
    package = name.partition(".")[0]
    if package in absent:
      asked.add(package)
      raise ModuleNotFoundError(f"{name} is not installed", name=name)


sys.meta_path.insert(0, Absent())
for name in sys.argv[2:]:
  importlib.import_module(name)
print(*asked)
"""


def run_program(program: str, *words: str) -> str:
  """What it prints."""
  finished = subprocess.run(
    [sys.executable, "-c", program, *words],
    cwd=ROOT,
    capture_output=True,
    text=True,
    timeout=120,
  )
  if finished.returncode:
    raise AssertionError(f"the imports failed:\n{finished.stderr}")
  return finished.stdout


# An environment whose tasks are played on another one's machines.
BASE_ENVIRONMENTS = {"harbor": "environments.os_interaction"}


class LayeringTest(parameterized.TestCase):
  @pytest.mark.slow
  def test_imports_point_down(self):
    files = [
      path
      for folder in (PACKAGE, "environments", "configs", "launch")
      for path in sorted((ROOT / folder).rglob("*.py"))
      if floor_of(path) is not None
    ]
    self.assertNotEmpty(files)
    for path in files:
      with self.subTest(str(path.relative_to(ROOT))):
        self.assertEmpty(upward_imports(floor_of(path), path.read_text()))

  def test_every_floor_is_named(self):
    floors = {
      f"{PACKAGE}.{path.parent.name}"
      for path in (ROOT / PACKAGE).glob("*/__init__.py")
    }
    self.assertContainsSubset(floors, MAY_IMPORT)

  @pytest.mark.slow
  def test_environments_do_not_know_each_other(self):
    for path in sorted((ROOT / "environments").glob("*/**/*.py")):
      name = path.relative_to(ROOT).parts[1]
      others = {
        found
        for found in imports_of(path.read_text())
        if is_within(found, "environments")
        and not is_within(found, f"environments.{name}")
        and not is_within(found, "environments.options")
        and not is_within(found, BASE_ENVIRONMENTS.get(name, "no such"))
      }
      with self.subTest(str(path.relative_to(ROOT))):
        self.assertEmpty(others)

  def test_losses_import_jax_and_chex_only(self):
    known = {"jax", "chex"} | set(sys.stdlib_module_names)
    for path in sorted((ROOT / PACKAGE / "losses").glob("*.py")):
      found = {
        name
        for name in imports_of(path.read_text())
        if not is_within(name, f"{PACKAGE}.losses")
      }
      with self.subTest(path.name):
        self.assertContainsSubset({n.split(".")[0] for n in found}, known)

  @pytest.mark.slow
  def test_losses_load_no_flax_optax_or_orbax(self):
    loaded = packages_loaded_by({"agentrl_jax.losses"})
    self.assertEqual(loaded & HEAVY, {"jax"})

  @pytest.mark.slow
  def test_what_waits_needs_no_jax(self):
    waiting = modules_without_jax()
    workers = {m for m in waiting if m.startswith(OF_WORKERS)}
    self.assertIn("environments.dbbench.environment", workers)
    self.assertEmpty(packages_asked_for(workers, OF_LEARNERS))
    self.assertIn("agentrl_jax.controller.episode", waiting)
    others = waiting - workers - ASK_FOR_JAX
    self.assertEmpty(packages_asked_for(others, HEAVY))
    self.assertIn("jax", packages_asked_for(ASK_FOR_JAX, HEAVY))

  @parameterized.parameters(
    ("agentrl_jax.losses", "from agentrl_jax.data import batch"),
    ("agentrl_jax.train", "import agentrl_jax.controller.episode"),
    ("agentrl_jax.controller", "from agentrl_jax.rollout import engine"),
    ("agentrl_jax.controller", "from agentrl_jax.rollout.clients import A"),
    (
      "agentrl_jax.service.controller",
      "import agentrl_jax.controller.groups.group",
    ),
    ("agentrl_jax.rollout.api", "import agentrl_jax.rollout.engine.engine"),
    ("agentrl_jax.rollout.engine", "import agentrl_jax.rollout.drivers.driver"),
    ("agentrl_jax.rollout.server", "import agentrl_jax.rollout.openai.routes"),
    ("agentrl_jax.controller", "def f():\n  import agentrl_jax.train"),
    ("agentrl_jax.model", "from agentrl_jax import train"),
    ("agentrl_jax.data", "from . import records"),
    ("environments", "from agentrl_jax.controller import episode"),
    ("agentrl_jax.env", "import environments.arithmetic"),
    ("configs", "import launch.train"),
    ("agentrl_jax.env.interface", "import agentrl_jax.service.worker.api"),
    (
      "agentrl_jax.service.worker",
      "import agentrl_jax.service.docker.containers",
    ),
    ("launch.run", "import launch.train"),
    ("launch.config", "from launch.serving import service"),
    ("launch.storage", "from launch import report"),
  )
  def test_the_inspector_sees(self, floor, source):
    self.assertLen(upward_imports(floor, source), 1)

  @parameterized.parameters(
    ("agentrl_jax.controller", "from agentrl_jax.rollout.api import A"),
    ("agentrl_jax.controller", "from agentrl_jax.rollout import api"),
    ("agentrl_jax.model", "from agentrl_jax import errors, files"),
    ("agentrl_jax.losses", "import agentrl_jax.losses.kl"),
    ("environments", "from environments.dbbench.generation import words"),
    ("agentrl_jax.train", "import jax, flax"),
  )
  def test_the_inspector_lets_pass(self, floor, source):
    self.assertEmpty(upward_imports(floor, source))
