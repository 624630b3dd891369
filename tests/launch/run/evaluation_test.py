"""Tests of the evaluator: policy slot 0, whatever training draws."""

import dataclasses
import types
from unittest import mock

import pytest

from agentrl_jax.controller.evaluation import EvaluationPlan, draw_tasks
from agentrl_jax.data.records import Task
from agentrl_jax.errors import EnvironmentFault, GeneratorFault
from agentrl_jax.rollout.drivers.driver import LocalDriver
from environments.arithmetic.environment import Arithmetic
from launch.config.settings import read_settings
from launch.reports.metrics_file import MetricsWriter
from launch.run.evaluation import Evaluator, read_episodes
from launch.serving.service import Service
from launch.storage.run_directory import RunDirectory
from tests.controller.player_test import Untaught
from tests.controller.stage import Brittle, ScriptedEngine, codec
from tests.launch import tiny


def requests_of(folder, mode, driver=None, **sampling):
  """The engine's requests of an evaluation, while training draws slot 1.

  `driver` is that of the service, which asks it whether the engine runs.
  """
  config = tiny.get_config()
  config.cross_policy.weights = (0.0, 1.0)
  config.sampling.update(temperature=0.5, **sampling)
  settings = read_settings(config)
  limits = dataclasses.replace(settings.episode, max_answer_tokens=64)
  settings = dataclasses.replace(settings, episode=limits)
  engine = ScriptedEngine()
  service = Service(
    codec(),
    publisher=None,
    generator=engine,
    settle=lambda: None,
    report=dict,
    status=lambda: None,
    driver=driver,
  )
  run = RunDirectory(folder, "")
  with MetricsWriter(run.root) as metrics:
    Evaluator(
      types.SimpleNamespace(settings=settings, folder=run),
      EvaluationPlan(**config.evaluation),
      {"arithmetic": Brittle()},
      metrics,
    ).policy("rl", mode, service)
  return [request for _, request in engine.asked]


def experts_score(folder, environments):
  config = tiny.get_config()
  run = RunDirectory(folder, "")
  with MetricsWriter(run.root) as metrics:
    return Evaluator(
      types.SimpleNamespace(settings=read_settings(config), folder=run),
      EvaluationPlan(**config.evaluation),
      environments,
      metrics,
    ).expert()


def test_the_expert_is_scored_where_there_is_one(tmp_path, caplog):
  environments = {"sums": Arithmetic(), "a": Untaught()}
  assert set(experts_score(tmp_path / "one", environments).tasks) == {"sums"}
  assert "no expert to compare with in a" in caplog.text
  assert experts_score(tmp_path / "none", {"a": Untaught()}) is None


class Dying(Arithmetic):
  """Plays one task, and has faults from then on."""

  opened = 0

  def open(self, task, *, seed):
    self.opened += 1
    if self.opened > 1:
      raise EnvironmentFault("gone")
    return super().open(task, seed=seed)


def test_lost_tasks_are_told(tmp_path, caplog):
  found = experts_score(tmp_path, {"sums": Dying()})
  assert found.tasks["sums"].n == 1
  assert "1 of 2 tasks of sums were lost to faults" in caplog.text


@pytest.mark.parametrize(
  ("mode", "temperature"), [("greedy", 0), ("sampled", 1)]
)
def test_policy_slot_0_answers_untruncated(tmp_path, mode, temperature):
  requests = requests_of(tmp_path, mode)
  assert {r.policy_slot for r in requests} == {0}
  assert {r.temperature for r in requests} == {temperature}
  assert {(r.top_k, r.top_p) for r in requests} == {(0, 1.0)}


def test_calls_are_constrained_as_in_training(tmp_path):
  for calls, is_constrained in (("free", False), ("well_formed", True)):
    requests = requests_of(tmp_path / calls, "greedy", calls=calls)
    assert {bool(r.grammar) for r in requests} == {is_constrained}


def test_a_score_of_an_engine_that_stopped_meanwhile_is_not_filed(tmp_path):
  driver = mock.create_autospec(LocalDriver, instance=True)
  requests_of(tmp_path / "runs", "greedy", driver)
  assert list(tmp_path.glob("runs/evaluations/*"))
  driver.require_running.side_effect = GeneratorFault("driver was closed")
  with pytest.raises(GeneratorFault, match="driver was closed"):
    requests_of(tmp_path / "stopped", "greedy", driver)
  assert not list(tmp_path.glob("stopped/evaluations/*"))


class Shop(Brittle):
  """An environment with a baseline."""

  baseline = "constant"


@pytest.mark.parametrize(
  ("names", "scripted", "scored"),
  [
    (("shop", "sums"), True, ["shop"]),  # one of the two has a baseline
    (("sums",), True, None),
    (("shop",), False, None),
  ],
)
def test_baselines_play_the_tasks_of_the_policy(
  tmp_path, names, scripted, scored
):
  config = tiny.get_config()
  config.evaluation.scripted = scripted
  environments = {n: Shop() if n == "shop" else Brittle() for n in names}
  run = RunDirectory(tmp_path, "")
  with MetricsWriter(run.root) as metrics:
    found = Evaluator(
      types.SimpleNamespace(settings=read_settings(config), folder=run),
      EvaluationPlan(**config.evaluation),
      environments,
      metrics,
    ).scripted()
  if scored is None:
    assert found is None
    assert not run.evaluation("scripted", "greedy").exists()
    return
  assert list(found.tasks) == scored
  played = set(read_episodes(run, "scripted", "greedy"))
  tasks = draw_tasks(
    environments, split="test", num_tasks=config.evaluation.num_tasks, seed=0
  )
  assert played == {task for task in tasks if task.name == "shop"}


def test_smaller_evaluations_play_the_first_tasks_of_each_environment():
  plan = EvaluationPlan(
    **{
      **tiny.get_config().evaluation,
      "num_tasks": 3,
      "num_sampled": 2,
      "num_untrained": 1,
    }
  )
  tasks = [Task(name, "test", i) for i in (3, 7, 8) for name in ("a", "b")]
  assert [
    plan.tasks_of("rl", "greedy", tasks),
    plan.tasks_of("rl", "sampled", tasks),
    plan.tasks_of("warm_start", "sampled", tasks[1:]),
    plan.tasks_of("untrained", "sampled", tasks),
    plan.tasks_of("untrained", "greedy", tasks),
  ] == [tasks, tasks[:4], tasks[1:5], tasks[:2], tasks[:2]]
  assert plan.number_of("rl", "greedy") == 3
  none = dataclasses.replace(plan, num_sampled=0, num_untrained=0)
  assert [
    none.number_of("rl", "sampled"),
    none.number_of("untrained", "sampled"),
    none.number_of("warm_start", "greedy"),
  ] == [0, 0, 3]
