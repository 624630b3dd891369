"""A wrong command line is one sentence and status 2, for every command."""

import contextlib
import functools
import io
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from unittest import mock

import pytest
from absl import app, flags
from absl.testing import absltest, flagsaver, parameterized

from agentrl_jax.errors import ConfigError, DeadlineExceeded
from launch.config import command_line
from tests.launch.command_lines import ROOT, outcomes

# What else each command requires, none of which is reached.
COMMANDS = {
  "launch.train": (),
  "launch.evaluate": (),
  "launch.plan": ("--topology=v5p-8",),
  "launch.check_slice": (),
  "launch.serve_rollouts": (),
  "launch.serve_environments": (),
  "launch.sync_weights": ("--engine=http://127.0.0.1:1", "--folder=x"),
}
WITHOUT_CONFIG = {
  "launch.export": ("--run=runs/none", "--to=none"),
  "launch.build_images": (),
  "launch.report": ("runs/none",),
  "launch.sweep": ("--ablation=configs/ablations/agentrl.py",),
  "launch.metrics": (),
  "launch.import_gguf": ("none.gguf", "--to=none"),
  "launch.serve": ("--model=none",),
  "launch.verifiers_agents": ("http://none/v1", "tiny", "--taskset=none"),
  "launch.view": ("runs/none",),
}
OF_ONE_WORD = ("launch.view", "launch.import_gguf", "launch.verifiers_agents")
SHORT_HELP = ("launch.train", "short help")
HELPFUL = (*COMMANDS, *WITHOUT_CONFIG, "launch.config")
QUICKSTART = "--config=configs/quickstart.py"
# Each case is a process.
SAMPLE = ("launch.train", "launch.export", "launch.build_images")


def _cases(commands: Sequence[str]) -> dict[tuple[str, str], list[str]]:
  cases = {}
  for name in COMMANDS.keys() & commands:
    more = COMMANDS[name]
    cases |= {
      (name, "arm"): [name, "--config=configs/ablations/calls.py:wel", *more],
      (name, "key"): [name, QUICKSTART, "--config.loss.clip_hihg=1", *more],
      (name, "flag"): [name, QUICKSTART, "--confg.seed=1", *more],
    }
  for name in WITHOUT_CONFIG.keys() & commands:
    more = WITHOUT_CONFIG[name]
    cases[name, "flag"] = [name, "--runn=x", *more]
    words = [*more, "dbbnech"] if name in OF_ONE_WORD else ["dbbnech", *more]
    cases[name, "word"] = [name, *words]
  train = ["launch.train"]
  return cases | {
    **{(name, "help"): [name, "--help"] for name in HELPFUL},
    SHORT_HELP: [*train, "-h"],
    ("launch.train", "file"): [*train, "--config=configs/quikstart.py"],
    ("launch.train", "no file"): train,
    ("launch.train", "bare key"): [*train, QUICKSTART, "--train.steps=5"],
    ("launch.train", "bare name"): [*train, QUICKSTART, "--steps=5"],
    ("launch.train", "needless arm"): [*train, f"{QUICKSTART}:fast"],
    ("launch.train", "type"): [*train, QUICKSTART, "--config.train.steps=many"],
    ("launch.train", "word"): [*train, QUICKSTART, "seed=1"],
    ("launch.export", "stage"): ["launch.export", "--stage=rll", "--to=x"],
  }


@functools.cache
def _outcomes(
  commands: Sequence[str],
) -> dict[tuple[str, str], tuple[int, str]]:
  cases = _cases(commands)
  return dict(zip(cases, outcomes(list(cases.values())), strict=True))


class Refusals(parameterized.TestCase):
  commands = SAMPLE

  def assert_refused(self, name, what, *words):
    status, said = _outcomes(self.commands)[name, what]
    self.assertEqual(status, command_line.REFUSED, said[-3000:])
    self.assertNotIn("Traceback", said)
    for word in words:
      self.assertIn(word, said)

  def assert_refused_of_a_config(self, name):
    self.assert_refused(
      name, "arm", "'wel' after", "free, well_formed, required"
    )
    self.assert_refused(
      name, "key", "loss.clip_hihg", "did you mean loss.clip_high", "clip_low"
    )
    self.assert_refused(name, "flag")


@pytest.mark.full
class EveryCommandTest(Refusals):
  commands = (*COMMANDS, *WITHOUT_CONFIG)

  @parameterized.parameters(*COMMANDS)
  def test_a_wrong_config_is_refused(self, name):
    self.assert_refused_of_a_config(name)

  @parameterized.parameters(*WITHOUT_CONFIG)
  def test_a_wrong_flag_is_refused(self, name):
    self.assert_refused(name, "flag")
    self.assert_refused(name, "word", "dbbnech")


class CommandLineTest(Refusals):
  def test_no_command_is_left_out(self):
    commands = {
      f"launch.{path.stem}"
      for path in (ROOT / "launch").glob("*.py")
      if '__name__ == "__main__"' in path.read_text()
    }
    self.assertEqual(commands, {*COMMANDS, *WITHOUT_CONFIG})

  def test_a_wrong_config_is_refused(self):
    self.assert_refused_of_a_config("launch.train")

  @parameterized.parameters(
    ("launch.build_images", "flag"),
    ("launch.build_images", "word", "did you mean dbbench", "webshop"),
    ("launch.export", "flag"),
    ("launch.export", "word", "dbbnech was found where flags are expected"),
    ("launch.export", "stage", "--stage=rll", "rl|warm_start"),
    ("launch.train", "word", "seed=1 was found where flags are expected"),
    ("launch.train", "file", "did you mean configs/quickstart.py"),
    ("launch.train", "no file", "--config is missing", "configs/quickstart.py"),
    ("launch.train", "bare key", "write --config.train.steps"),
    ("launch.train", "bare name", "--config.KEY=VALUE", "mean train.steps?"),
    ("launch.train", "needless arm", "takes nothing after a colon", "'fast'"),
    ("launch.train", "type", "--config.train.steps=many", "int"),
  )
  def test_others(self, name, what, *words):
    self.assert_refused(name, what, *words)

  def test_help_is_no_error(self):
    for name, what in (*((name, "help") for name in HELPFUL), SHORT_HELP):
      status, said = _outcomes(self.commands)[name, what]
      with self.subTest(name, what=what):
        self.assertEqual(status, 0, said)
        self.assertRegex(said, "(?i)usage|flags:")


class ErrorsOfTasksTest(parameterized.TestCase):
  """Errors of tasks that ran at once: one sentence, or a traceback."""

  def _end(self, error):
    def main():
      raise error

    with (
      flagsaver.flagsaver(),
      contextlib.redirect_stderr(io.StringIO()) as said,
      mock.patch.object(app, "run", lambda answer, **_: answer([])),
    ):
      try:
        command_line.run(main, argv=[])
      except SystemExit as end:
        return end.code, said.getvalue()

  def test_own_errors_end_with_the_first(self):
    within = ExceptionGroup("", [ConfigError("set x"), DeadlineExceeded("y")])
    self.assertEqual(
      self._end(ExceptionGroup("", [within])), (2, "ConfigError: set x\n")
    )
    late = ExceptionGroup("", [DeadlineExceeded("y"), ConfigError("set x")])
    self.assertEqual(self._end(late), ("DeadlineExceeded: y", ""))

  def test_a_path_that_cannot_be_written_is_a_sentence(self):
    with tempfile.NamedTemporaryFile() as file:
      for path in (pathlib.Path(file.name, "run"), pathlib.Path(file.name)):
        with self.assertRaises(OSError) as caught:
          path.mkdir(parents=True)
        status, said = self._end(caught.exception)
        self.assertIn(f"NotWritten: {path} cannot be written", status)
        self.assertEqual(said, "")

  def test_a_bug_beside_them_is_raised(self):
    for bug in (KeyError("x"), ExceptionGroup("", [KeyError("x")])):
      group = ExceptionGroup("", [ConfigError("set x"), bug])
      with self.assertRaises(ExceptionGroup):
        self._end(group)


class NumbersOfFlagsTest(parameterized.TestCase):
  @parameterized.parameters("nan", "inf", "-inf", "1e300")
  def test_a_number_without_end_is_refused(self, value):
    given = flags.FlagValues()
    flags.DEFINE_float("scale", 1.0, "", lower_bound=0, flag_values=given)
    flags.DEFINE_string("name", "nan", "", flag_values=given)
    given(["command", "--scale=1e9"])
    command_line._refuse_endless(given)
    given["scale"].value = float(value)
    with self.assertRaisesRegex(ConfigError, "--scale=.* must be a number"):
      command_line._refuse_endless(given)


class CheckConfigTest(absltest.TestCase):
  def refused(self, *arguments) -> str:
    with self.assertRaises(ConfigError) as caught:
      command_line.load_config([QUICKSTART, *arguments])
    return str(caught.exception)

  def test_all_wrong_keys_are_named_at_once(self):
    said = self.refused(
      "--config.loss.clip_hihg=1",
      "--config.train.step",
      "3",
      "--noconfig.evaluation.scriptd",
    )
    for near in ("loss.clip_high", "train.steps", "evaluation.scripted"):
      self.assertIn(f"did you mean {near}", said)

  def test_a_key_of_another_section(self):
    self.assertIn(
      "did you mean loss.clip_high?", self.refused("--config.clip_high=1")
    )
    self.assertIn("did you mean loss?", self.refused("--config.los.x=1"))

  def test_what_is_right_is_let_through(self):
    for arguments in (
      ["--config.loss.clip_high=0.3", "--noconfig.evaluation.scripted"],
      ["--config.environments.dbbench.options.max_rounds=3"],
      ["--config.queue.max_age=3"],
    ):
      command_line.load_config([QUICKSTART, *arguments])

  @pytest.mark.filterwarnings("ignore:the load_module")  # ml_collections
  def test_an_environments_section_takes_keys_that_it_lacks(self):
    above = "--config.environments.dbbench"
    config = command_line.load_config(
      [
        QUICKSTART,
        f"{above}.options.num_rows=(4, 6)",
        f"{above}.options.source=rows.jsonl",
        f"{above}.mistakes.no_query=0.5",
        f"{above}.place.containers=2",
      ]
    )
    found = config.environments.dbbench
    mistakes = found.mistakes
    self.assertEqual(
      (
        (found.options.num_rows, found.options.source),
        (mistakes.no_query, mistakes.no_cast),
        found.place.containers,
      ),
      (((4, 6), "rows.jsonl"), (0.5, 0.55), 2),
    )

  def test_a_mistake_within_a_config_file_is_no_mistake_of_the_user(self):
    folder = self.enterContext(tempfile.TemporaryDirectory())
    path = pathlib.Path(folder) / "broken.py"
    path.write_text("def get_config():\n  return {}['nothing']\n")
    with self.assertRaises(KeyError):
      command_line.load_config([f"--config={path}"])

  def test_a_file_that_is_no_config(self):
    with self.assertRaisesRegex(ConfigError, "defines no get_config"):
      command_line.load_config(["--config", "configs/arms.py"])


@pytest.mark.slow
def test_no_command_waits_for_what_few_use():
  """Each of these takes longer to import than the config to read."""
  program = (
    "import sys, launch.report, launch.run.training; print(*sys.modules)"
  )
  loaded = subprocess.run(
    [sys.executable, "-c", program],
    cwd=ROOT,
    capture_output=True,
    text=True,
    check=True,
    timeout=120,
  ).stdout.split()
  assert "launch.run.training" in loaded
  late = {"matplotlib", "scipy.stats", "jax.experimental.pallas", "nltk"}
  assert not late & {*loaded}
