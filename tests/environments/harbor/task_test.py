"""Reading of Harbor's tasks: what is played, and what is refused."""

import pathlib
import tempfile
import tomllib
import unittest
import warnings

from absl.testing import parameterized

from agentrl_jax.errors import ConfigError
from environments.harbor.planner import lay_out
from environments.harbor.task import make_task, read_folder
from tests.environments.harbor.folders import (
  files_with,
  harbor_or_skip,
  write_folder,
)
from tests.environments.harbor.generation import generate_files


def toml(text):
  return files_with(task_dot_toml=text)


class ReadTest(parameterized.TestCase):
  def test_all_keys_that_decide_how_it_is_played(self):
    files = toml(
      'version = "1.0"\nartifacts = ["out", {source = "/app/x"}]\n'
      '[environment]\nmemory = "2G"\ncpus = 1\nstorage_mb = 99\n'
      'env = {A = "b"}\nworkdir = "/srv"\n[agent]\nuser = "root"\n'
      '[verifier]\ntimeout_sec = 7\nenv = {C = "d"}\n'
      'environment_mode = "separate"\n'
    )
    task = make_task("a", files)
    self.assertEqual(task.limits, {"cpus": 1, "memory_mb": 2048, "disk_mb": 99})
    self.assertEqual((task.test_limit_s, task.test_env), (7, {"C": "d"}))
    self.assertEqual(task.artifacts, ("out", "/app/x"))
    self.assertEqual(task.verifier, task.machine)
    plan = lay_out("a", task.machine)
    self.assertEqual((plan.workdir, plan.env["A"]), ("/srv", "b"))

  def test_a_context_without_what_its_dockerignore_names(self):
    files = files_with(
      environment___dot_dockerignore="# *.py\nold\n**/*.key\n!b.key\nDock*\n",
      environment__old__deep__a="x",
      environment__data__a_dot_key="x",
      environment__b_dot_key="x",
      environment__c_dot_py="x",
    )
    kept = make_task("a", files).machine.files
    self.assertNotIn("old/deep/a", kept)
    self.assertNotIn("data/a.key", kept)
    self.assertLessEqual({"Dockerfile", "b.key", "c.py"}, kept.keys())

  def test_canary_is_not_shown(self):
    files = files_with(
      instruction_dot_md="<!-- a canary GUID -->\n# Canary 7\n\n# Do it\nnow\n"
    )
    self.assertEqual(make_task("a", files).instruction, "# Do it\nnow")

  @parameterized.parameters(
    ("[environment]\ngpus = 1", "needs a GPU"),
    ('[environment.tpu]\ntype="v6e"', "needs a TPU"),
    ('[environment]\nos = "Windows"', "needs Windows"),
    ('[[environment.mcp_servers]]\nname="x"', "needs MCP servers"),
    ('[environment.healthcheck]\ncommand="x"', "waits for a service"),
    ('[environment]\nnetwork_mode = "public"', "set network=True"),
    ("[environment]\nallow_internet = true", "set network=True"),
    ('[agent]\nnetwork_mode = "allowlist"', "allows some hosts only"),
    ('[agent]\nuser = "agent"', "another user than root"),
    ('[[steps]]\nname = "one"', "has several steps"),
    ('[verifier]\nenv = {KEY = "${KEY}"}', "variables of its host"),
    ('[[artifacts]]\nsource="/x"\nservice="db"', "several containers"),
    ("[environment]\ncpus = 0", "environment.cpus: Input should be greater"),
    ('[verifier]\nenvironment_mode = "own"', "verifier.environment_mode"),
    ("[environment]\ngpus = 1\n[[steps]]\n", "several steps; it needs a GPU"),
    ("[environment", "is no TOML"),
  )
  def test_refused_with_one_sentence(self, text, sentence):
    with self.assertRaisesRegex(ConfigError, sentence):
      make_task("a", toml(text))

  @parameterized.parameters(
    ({"tests__test_dot_sh": None}, "has no tests/test.sh"),
    ({"instruction_dot_md": None}, "has no instruction.md"),
    ({"task_dot_toml": None}, "has no task.toml"),
    ({"environment__Dockerfile": None}, "neither a Dockerfile nor"),
    ({"environment__docker-compose_dot_yaml": ""}, "several containers"),
    ({"tests__Dockerfile": "FROM x"}, "without environment_mode"),
    ({"trajectory_dot_json": "{}"}, "begins with a trajectory.json"),
    ({"tests__test_dot_sh": "apt-get -qq update"}, "apt-get -qq update"),
    ({"tests__test_dot_sh": "curl https://x.org"}, "downloads in"),
    ({"tests__test_dot_sh": "uvx pytest"}, "downloads in"),
  )
  def test_missing_or_unwanted_files(self, changed, sentence):
    with self.assertRaisesRegex(ConfigError, sentence):
      make_task("a", files_with(**changed))

  def test_network_is_given_or_not_needed(self):
    text = '[environment]\nnetwork_mode = "public"\n'
    make_task("a", toml(text), network=True)
    script = "curl http://localhost:80/update && pip --version"
    make_task("a", files_with(tests__test_dot_sh=script))

  def test_links_out_of_the_folder_are_not_followed(self):
    with tempfile.TemporaryDirectory() as folder:
      root = write_folder(pathlib.Path(folder), files_with())
      (root / "environment/files/secret").symlink_to("/etc/passwd")
      with self.assertRaisesRegex(ConfigError, "is a link"):
        read_folder(root)


class LayOutTest(parameterized.TestCase):
  def lay_out(self, text):
    files = files_with(environment__Dockerfile=text)
    return lay_out("a", make_task("a", files).machine)

  def test_steps(self):
    plan = self.lay_out(
      "FROM agentrl_jax/os_interaction AS base\nENV A=b C='d e'\nWORKDIR /w\n"
      "WORKDIR v\nCOPY files/readme.txt .\nCOPY files/readme.txt /x/y\n"
      "COPY . /all/\nCOPY files /w/v\nRUN echo $A \\\n  && true\nCMD x\n"
    )
    self.assertEqual(plan.workdir, "/w/v")
    self.assertEqual((plan.env["A"], plan.env["C"]), ("b", "d e"))
    *copies, script = [s for s in plan.steps if "mkdir" not in s]
    self.assertEqual(
      [sorted(copy) for copy in copies],
      [
        ["/w/v/readme.txt"],
        ["/x/y"],
        ["/all/Dockerfile", "/all/files/readme.txt"],
        ["/w/v/readme.txt"],
      ],
    )
    self.assertIn("C='d e'; cd /w/v && echo $A", script)

  @parameterized.parameters(
    "COPY --from=x a b",
    "COPY nothing /app",
    "COPY ../task.toml /app",
    "ADD x y",
    "USER nobody",
    "ENV A=$B",
    "WORKDIR $A",
    "RUN --mount=type=cache true",
    'RUN ["true"]',
    "RUN <<EOF\ntrue\nEOF",
    "ARG X",
    "SHELL x",
  )
  def test_refused(self, line):
    with self.assertRaisesRegex(ConfigError, "carries out plain"):
      self.lay_out(f"FROM x\n{line}\n")


class HarborsOwnModelsTest(unittest.TestCase):
  """Harbor reads our tasks, and both read the same in others'."""

  def test_task_config(self):
    own = harbor_or_skip("harbor.models.task.config").TaskConfig
    text = (
      'version = "1.0"\n[environment]\nmemory = "3G"\nstorage = "512M"\n'
      "cpus = 2\n[verifier]\ntimeout_sec = 9.5\n[verifier.environment]\n"
    )
    with warnings.catch_warnings(action="ignore"):
      theirs = own.model_validate_toml(text)
      for index in range(8):
        files = generate_files("train", index)
        own.model_validate(tomllib.loads(files["task.toml"].content.decode()))
    ours = make_task("a", toml(text))
    environment = theirs.environment
    self.assertEqual(ours.limits["memory_mb"], environment.memory_mb)
    self.assertGreaterEqual(ours.limits["disk_mb"], environment.storage_mb)
    self.assertEqual(ours.test_limit_s, theirs.verifier.timeout_sec)
