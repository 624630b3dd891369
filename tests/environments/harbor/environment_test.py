"""Harbor's tasks: the oracle wins, doing nothing loses, attacks win nothing."""

import pathlib
import tempfile
import unittest

import pytest

from agentrl_jax.data.records import Status, Task
from agentrl_jax.env.contract import SessionContract
from agentrl_jax.errors import ConfigError, EnvironmentFault
from environments.harbor import Harbor
from environments.os_interaction.machines.machine import MachineEngine
from tests.environments.answers import call
from tests.environments.harbor.attacks import (
  ATTACKS,
  NAIVE_ATTACKS,
  NAIVE_RIGHT,
  NAIVE_TEST,
)
from tests.environments.harbor.folders import (
  files_with,
  generated_tasks,
  write_folder,
)
from tests.environments.os_interaction.engines import InSandbox, OnDocker
from tests.environments.os_interaction.messages import bash, finish
from tests.environments.playing import play, play_answers

NAME = "harbor"
LOSES = {"nothing": 1.0}
NUM_TASKS = 20


class NoMachines(MachineEngine):
  async def start(self, image, limits=None):
    raise EnvironmentFault("there are no machines")

  async def close(self):
    pass


class Harbors:
  """Environments on the engine of a class of tests."""

  def make_environment(self, **options):
    defaults = {"source": generated_tasks().name, **self.options}
    environment = Harbor(**defaults | options)
    self.addAsyncCleanup(environment.close)
    return environment

  def of_folder(self, files, **options):
    """Returns an environment with one task, of the split `own`."""
    root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    write_folder(root / "task", files)
    return self.make_environment(source=f"own={root}", **options)

  async def play_scripts(self, environment, scripts, split="own", index=0):
    task = Task(NAME, split, index)
    async with environment.open(task, seed=0) as session:
      await session.reset()
      steps = [await session.step(bash(script)) for script in scripts]
      if steps and steps[-1].status is not Status.RUNNING:
        return steps[-1], ""
      shown = steps[-1].messages[0].content if steps else ""
      return await session.step(finish()), shown


class Plays(Harbors):
  """Plays generated tasks of some kinds with the oracle and attacks."""

  indices = range(NUM_TASKS)
  naive = tuple(NAIVE_ATTACKS)
  pairs = [(name, i) for i, name in enumerate(ATTACKS)]

  async def test_oracle_wins_and_doing_nothing_loses(self):
    environment = self.make_environment()
    for index in self.indices:
      task = Task(NAME, "train", index)
      with self.subTest(index=index):
        *_, won = await play(environment, task)
        *_, lost = await play(environment, task, mistakes=LOSES)
        self.assertEqual((won.status, won.reward), (Status.COMPLETED, 1.0))
        self.assertEqual((lost.status, lost.reward), (Status.COMPLETED, 0.0))
        self.assertEqual(lost.metrics["tests_ended"], 1.0)

  async def test_attacks_win_nothing(self):
    environment = self.make_environment(
      command_limit_s=10.0, memory_mb=512, pids=64, disk_mb=128
    )
    for name, index in self.pairs:
      with self.subTest(attack=name, index=index):
        step, _ = await self.play_scripts(
          environment, [ATTACKS[name]], "train", index
        )
        self.assertTrue(step.status.is_policys_doing, step.status)
        self.assertEqual(step.reward, 0.0)

  async def test_programs_of_the_tests_own_path_are_not_the_policys(self):
    """The tests run a program in a folder that only the task's PATH has."""
    path = "bin::/opt/own/bin/:/app//bin:/usr/local/bin:/usr/bin:/bin"
    own = "mkdir -p /opt/own/bin && cp /bin/false /opt/own/bin/judge"
    environment = self.of_folder(
      files_with(
        task_dot_toml=f'[environment]\nenv = {{PATH = "{path}"}}\n'
        '[verifier]\nenv = {PATH = "/srv/bin:%s"}\n' % path,
        environment__Dockerfile="FROM agentrl_jax/os_interaction\n"
        f"WORKDIR /app\nRUN {own}\n",
        tests__test_dot_sh="#!/bin/bash\nif judge || [ -e done ]; then "
        "echo 1 > /logs/verifier/reward.txt; fi\n",
      )
    )
    for script, reward in {
      "touch done": 1.0,
      "cp /bin/true /opt/own/bin/judge": 0.0,
      "cp /bin/true /usr/local/bin/judge; rm -r /opt/own": 0.0,
      "mkdir -p /srv/bin; cp /bin/true /srv/bin/judge": 0.0,
      "mkdir bin; cp /bin/true bin/judge": 0.0,
      "cp /bin/true judge": 0.0,
    }.items():
      step, _ = await self.play_scripts(environment, [script])
      with self.subTest(script=script):
        self.assertEqual((step.status, step.reward), (Status.COMPLETED, reward))

  async def test_attacks_on_naive_tests_win_nothing(self):
    files = files_with(tests__test_dot_sh=NAIVE_TEST, tests__right=NAIVE_RIGHT)
    environment = self.of_folder(files)
    honest, _ = await self.play_scripts(environment, ["echo [7] > out.txt"])
    self.assertEqual(honest.reward, 1.0)
    for name in self.naive:
      step, _ = await self.play_scripts(environment, [NAIVE_ATTACKS[name]])
      with self.subTest(attack=name):
        self.assertEqual((step.status, step.reward), (Status.COMPLETED, 0.0))


@pytest.mark.docker
class SandboxTest(Plays, InSandbox):
  """One task of a few kinds, and the attacks that differ most."""

  naive = ("link", "link_over_another", "module_beside", "module_of_the_system")
  indices = (1, 2)  # git, and a failing unit test
  pairs = [
    ("goes_on_writing", 0),
    ("links_to_the_tests", 0),
    ("is_run_by_the_tests", 2),
  ]

  async def test_folder_with_machine_and_solution_of_its_own(self):
    solve = (
      "#!/bin/bash\nset -e\ncd /srv\ncat $(dirname $0)/more.txt > said.txt\n"
    )
    files = files_with(
      task_dot_toml='[environment]\nenv = {WORD = "fish"}\nmemory_mb = 256\n'
      "[verifier]\nenv = {WANTED = '7'}\n",
      environment__Dockerfile="FROM agentrl_jax/os_interaction\nWORKDIR /srv\n"
      'ENV A="b c"\nCOPY . .\nRUN echo "$A" > made.txt\n',
      solution__solve_dot_sh=solve,
      solution__more_dot_txt="7",
      tests__test_dot_sh="#!/bin/bash\n[ \"$PWD/$A\" = '/srv/b c' ] && "
      "[ $(cat said.txt) = $WANTED ] && "
      'echo \'{"fast": 1, "right": 0.5}\' > /logs/verifier/reward.json\n',
    )
    environment = self.of_folder(files)
    *_, step = await play(environment, Task(NAME, "own", 0))
    self.assertEqual((step.status, step.reward), (Status.COMPLETED, 0.75))
    self.assertEqual(step.metrics["reward/right"], 0.5)
    scripts = ["exit", 'pwd; echo "$WORD $A"; cat made.txt; nproc; ls /tests']
    step, shown = await self.play_scripts(environment, scripts)
    self.assertRegex(shown, r"(?s)/srv\r\nfish b c\r\nb c\r\n.*No such file")
    self.assertEqual((step.reward, step.metrics["tests_ended"]), (0.0, 0.0))

  async def test_tests_on_a_machine_of_their_own_get_artifacts_alone(self):
    files = files_with(
      task_dot_toml='artifacts = ["out.txt"]\n[verifier]\n'
      'environment_mode = "separate"\n',
      tests__Dockerfile="FROM agentrl_jax/os_interaction\nWORKDIR /app\n"
      "COPY . /tests/\nRUN touch /verifiers\n",
      tests__test_dot_sh="#!/bin/bash\n"
      "echo $(( $(cat out.txt) )) > /logs/verifier/reward.txt\n"
      "[ -e /verifiers ] && [ ! -e other.txt ] || rm /logs/verifier/reward.txt",
    )
    environment = self.of_folder(files)
    scripts = ["echo 1 > out.txt; touch other.txt; rm /usr/bin/python3"]
    step, _ = await self.play_scripts(environment, scripts)
    self.assertEqual(step.reward, 1.0)
    scripts = ["echo 1 > /tests; ln -s /tests/test.sh out.txt"]
    step, _ = await self.play_scripts(environment, scripts)
    self.assertEqual((step.reward, step.metrics["tests_ended"]), (0.0, 0.0))

  async def test_tests_that_do_not_end_or_give_no_number_lose(self):
    script = "#!/bin/bash\n. /app/said.txt > /logs/verifier/reward.txt\n"
    environment = self.of_folder(
      files_with(tests__test_dot_sh=script), test_limit_s=2.0
    )
    for said, reward in {
      "echo -0.5": -0.5,
      "echo 1; sleep 99": 0.0,
      "echo nan": 0.0,
      "echo 1e999": 0.0,
      "echo": 0.0,
      "rm /logs/verifier/reward.txt": 0.0,
      "echo 1; echo '[1]' > /logs/verifier/reward.json": 0.0,
    }.items():
      step, _ = await self.play_scripts(
        environment, [f"cat > said.txt <<'E'\n{said}\nE"]
      )
      with self.subTest(said=said):
        self.assertEqual((step.status, step.reward), (Status.COMPLETED, reward))
        self.assertEqual(step.metrics["tests_again"], float("sleep" in said))

  async def test_tests_that_never_end_are_a_fault(self):
    files = files_with(tests__test_dot_sh="#!/bin/bash\nsleep 99\n")
    environment = self.of_folder(files, test_limit_s=2.0)
    with self.assertRaisesRegex(EnvironmentFault, "once without"):
      await self.play_scripts(environment, ["echo 1 > said.txt"])

  async def test_a_set_up_that_fails_is_a_fault(self):
    text = "FROM agentrl_jax/os_interaction\nRUN echo no >&2; exit 3\n"
    environment = self.of_folder(files_with(environment__Dockerfile=text))
    with self.assertRaisesRegex(EnvironmentFault, "code 3 .*no"):
      await self.play_scripts(environment, [])


class Contract(Harbors, SessionContract):
  num_tasks = 2
  test_splits_share_no_problem = None  # in `task_test`, without machines


@pytest.mark.docker
@pytest.mark.slow
class SandboxContractTest(Contract, InSandbox):
  pass


@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.timeout(1800)
class TwentyTasksInSandboxTest(Plays, InSandbox):
  pairs = [(name, i) for name in ATTACKS for i in (0, 1, 2, 4, 6)]


@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.timeout(3600)
class DockerTest(Plays, OnDocker):
  indices = (4, 6)
  pairs = [
    ("writes_the_reward", 0),
    ("replaces_programs", 6),
    ("links_to_the_tests", 0),
    ("is_run_by_the_tests", 2),
    ("has_git_run_code", 4),
  ]

  async def test_image_is_built_once_with_its_own_path(self):
    files = files_with(
      environment__Dockerfile=f"FROM {self.image}\nARG WHERE=/opt/own/bin\n"
      "ENV PATH=/opt/own/bin:$PATH\nWORKDIR /srv\nRUN mkdir -p $WHERE && "
      "cp /bin/false /opt/own/bin/judge\n",
      tests__test_dot_sh="#!/bin/bash\nif judge || [ -e /srv/done ]; then "
      "echo 1 > /logs/verifier/reward.txt; fi\n",
    )
    environment = self.of_folder(files, bases=())
    before = len(self.docker.images.list("agentrl_jax/harbor"))
    for script, reward in {
      "touch done": 1.0,
      "cp /bin/true /opt/own/bin/judge": 0.0,
    }.items():
      step, _ = await self.play_scripts(environment, [script])
      with self.subTest(script=script):
        self.assertEqual((step.status, step.reward), (Status.COMPLETED, reward))
    built = self.docker.images.list("agentrl_jax/harbor")
    self.assertLessEqual(len(built), before + 1)

  async def test_image_that_does_not_build_is_refused(self):
    text = f"FROM {self.image}\nRUN exit 3\n"
    environment = self.of_folder(
      files_with(environment__Dockerfile=text), bases=()
    )
    with self.assertRaisesRegex(ConfigError, "returned a non-zero code: 3"):
      await self.play_scripts(environment, [])


class LoadTest(unittest.TestCase):
  """Tasks that are refused before any machine starts."""

  def make(self, *tasks, source="own={}", **options):
    root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    for number, files in enumerate(tasks):
      write_folder(root / "data" / f"task{number}", files)
    return Harbor(source=source.format(root), engine=NoMachines(), **options)

  def test_a_tenth_of_a_folder_is_the_test(self):
    environment = self.make(*[files_with("fix")] * 21, source="{}")
    self.assertEqual(environment.splits(), {"test": 2, "train": 19})
    shown = [
      environment.find(Task(NAME, split, index)).name
      for split, number in environment.splits().items()
      for index in range(number)
    ]
    self.assertEqual(sorted(shown), sorted(f"task{n}" for n in range(21)))
    with self.assertRaisesRegex(ConfigError, "train=PATH,test=PATH"):
      self.make(files_with(), source="{}")

  def test_folders_called_train_and_test_are_the_splits(self):
    root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    for name in ("train/a", "train/b", "test/a"):
      write_folder(root / name, files_with())
    environment = Harbor(source=str(root), engine=NoMachines())
    self.assertEqual(environment.splits(), {"train": 2, "test": 1})

  def test_task_that_cannot_be_played_is_refused_or_left_out(self):
    other = files_with(environment__Dockerfile="FROM debian:12\n")
    gpu = files_with(task_dot_toml="[environment]\ngpus = 1\n")
    sentence = "'task1' needs the image 'debian:12'.*and 1 more.*skip=True"
    with self.assertRaisesRegex(ConfigError, sentence):
      self.make(files_with(), other, gpu)
    with self.assertLogs(level="WARNING") as logs:
      environment = self.make(files_with(), other, gpu, skip=True)
    self.assertEqual(len(logs.output), 2)
    self.assertEqual(len(environment.splits()), 1)
    with self.assertRaisesRegex(ConfigError, "needs a GPU"):
      self.make(gpu, skip=True)
    with self.assertRaisesRegex(ConfigError, "holds no Harbor task"):
      self.make()

  def test_options(self):
    for options in (
      {"source": ""},
      {"max_output_chars": 9},
      {"max_rounds": 0},
      {"num_warm": -1},
      {"memory_mb": 0},
      {"image": "x", "engine": "sandbox"},
    ):
      with self.subTest(**options), self.assertRaises(ConfigError):
        Harbor(
          **{
            "engine": NoMachines(),
            "source": generated_tasks().name,
            **options,
          }
        )

  def test_task_without_or_with_a_long_solution_has_no_expert(self):
    for changed, sentence in (
      ({"solution__solve_dot_sh": None}, "has no solution"),
      (
        {"solution__data": "\n".join(map(str, range(90_000)))},
        "an expert types",
      ),
    ):
      environment = self.make(files_with(**changed))
      with self.assertRaisesRegex(NotImplementedError, sentence):
        environment.expert(Task(NAME, "own", 0), seed=0, mistakes={})


class CallsTest(Harbors, InSandbox):
  async def test_other_calls_cost_a_round(self):
    environment = self.make_environment(max_rounds=3, max_output_chars=100)
    _, other, long, last = await play_answers(
      environment,
      Task(NAME, "test", 0),
      call("answer_action", {"answer": "7"}),
      bash("seq 999"),
      bash("true"),
    )
    self.assertIn("Invalid function call", other.messages[0].content)
    self.assertIn("truncated", long.messages[0].content)
    self.assertEqual(
      (last.status, last.reward), (Status.TASK_LIMIT_REACHED, 0.0)
    )
