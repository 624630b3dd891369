"""Tests of evaluations during RL: beside the learner, apart from training."""

import asyncio
import collections
import contextlib
import itertools
import time
import types

import pytest

from agentrl_jax.controller.evaluation import metrics_of
from agentrl_jax.controller.thread import ControllerThread
from agentrl_jax.errors import ConfigError
from launch.config.settings import read_settings
from launch.reports import plots
from launch.reports.metrics_file import MetricsWriter, read_metrics
from launch.reports.summary import read_summary
from launch.run.environments import task_stream, tasks_during, training_stream
from launch.run.evaluation import Validation, read_episodes
from launch.run.training import train
from launch.serving.service import Service
from launch.storage.load_params import load_step
from launch.storage.run_directory import RunDirectory
from launch.viewing.trajectory_index import TrajectoryIndex
from tests.clocks import wait_until
from tests.controller.stage import Brittle, ScriptedEngine, codec
from tests.launch import tiny

DUE = {"evaluation.every": 2, "evaluation.num_tasks_during": 4}
# Long enough for four episodes on a busy machine: one that hangs waits for it.
ONE_MODE = {"evaluation.num_sampled_during": 0, "evaluation.timeout_s": 10.0}
NUM_TASKS = 40  # of the split that is trained on


class Few(Brittle):
  """An environment of few tasks; the episodes of some hang, if it is asked."""

  hangs = False

  def indices(self, split):
    return range(NUM_TASKS if split == "train" else 3)

  @contextlib.asynccontextmanager
  async def open(self, task, *, seed):
    if self.hangs:
      await asyncio.sleep(1e6)
    async with super().open(task, seed=seed) as session:
      yield session


def config_of(**changes):
  config = tiny.get_config()
  config.update_from_flattened_dict(DUE | changes)
  config.episode.max_answer_tokens = 64
  config.report.keep_groups = 2
  return config


@contextlib.contextmanager
def validation(folder, environment=None, engine=None, **changes):
  """Yields evaluations of a run, and a function that returns their metrics."""
  config = config_of(**changes)
  settings = read_settings(config)
  environments = {"arithmetic": environment or Few()}
  service = Service(
    codec(),
    publisher=None,
    generator=engine or ScriptedEngine(version=3),
    settle=lambda: None,
    report=dict,
    status=lambda: None,
  )
  context = types.SimpleNamespace(
    config=config,
    settings=settings,
    folder=RunDirectory(folder, ""),
    interrupts=types.SimpleNamespace(received=None),
  )
  with MetricsWriter(folder) as metrics:
    each = Validation(
      context,
      environments,
      service,
      metrics,
      tasks_during(settings, environments),
    )
    each.resume()
    yield each, lambda: read_metrics(metrics.path)


def collected(each, rows, number):
  """Collects until there are `number` rows, as the learner does."""

  def come():
    each.collect()
    return len(rows()) >= number

  wait_until(come, lambda: f"{len(rows())} rows", 60.0)
  return rows()


def test_tasks_of_evaluations_are_not_trained_on():
  settings = read_settings(config_of())
  environments = {"arithmetic": Few()}
  held_out = {task.index for task in tasks_during(settings, environments)}
  assert len(held_out) == 4
  streams = [
    training_stream(settings, environments, purpose="rl"),
    task_stream(
      settings, environments, split="train", purpose="demonstrations"
    ),
  ]
  for stream in streams:
    drawn = itertools.islice(stream, 3 * NUM_TASKS)
    assert {task.index for _, task in drawn} == set(range(NUM_TASKS)) - held_out


def test_tasks_are_another_splits_if_one_is_named():
  settings = read_settings(config_of(**{"evaluation.split": "dev"}))
  environments = {"arithmetic": Few()}
  assert {t.split for t in tasks_during(settings, environments)} == {"dev"}
  stream = training_stream(settings, environments, purpose="rl")
  drawn = {task.index for _, task in itertools.islice(stream, 3 * NUM_TASKS)}
  assert drawn == set(range(NUM_TASKS))


def test_more_than_half_of_the_tasks_cannot_be_held_out():
  settings = read_settings(config_of(**{"evaluation.num_tasks_during": 21}))
  with pytest.raises(ConfigError, match="at most half is held out"):
    tasks_during(settings, {"arithmetic": Few()})


def test_versions_that_are_due_are_scored_in_both_modes(tmp_path):
  with validation(tmp_path) as (each, rows), ControllerThread() as thread:
    for version, number in ((0, 2), (1, 2), (2, 4), (3, 4), (5, 6)):
      each.begin(thread, version)
      collected(each, rows, number)
    each.begin(thread, 6)  # the last: left to `finish`
    each.finish()
    each.finish()
    found = [(row.stage, row.step) for row in rows()]
    assert found == [
      (f"validation_{mode}", version)
      for version in (0, 2, 5, 6)
      for mode in ("greedy", "sampled")
    ]
    values = rows()[0].values
    assert values["eval/success/arithmetic"] == 1
    assert values["eval/tasks/arithmetic"] == 4
    assert (values["eval/oldest_version"], values["eval/newest_version"]) == (
      3,
      3,
    )
    assert values["eval/sampled_tokens/arithmetic"] > 0
    listed = TrajectoryIndex(tmp_path).listing().trajectories
    played = collections.Counter(each.played for each in listed)
    assert played["validation 000005 sampled"] == 2  # of report.keep_groups
    assert len(played) == 8
    plot = plots.run_plots(rows(), [])[1]
    assert list(plot.lines[0].x) == [0, 2, 5, 6]


def test_a_later_start_repeats_no_evaluation_that_is_kept(tmp_path):
  with validation(tmp_path) as (each, rows), ControllerThread() as thread:
    each.begin(thread, 2)
    collected(each, rows, 2)
  with validation(tmp_path) as (each, rows), ControllerThread() as thread:
    each.begin(thread, 3)
    each.begin(thread, 4)  # would be left out if one of 3 had begun
    assert [row.step for row in collected(each, rows, 4)] == [2, 2, 4, 4]


def test_an_environment_that_hangs_holds_nobody(tmp_path, caplog):
  environment = Few()
  environment.hangs = True
  began_at = time.monotonic()
  with (
    validation(tmp_path, environment) as (each, rows),
    ControllerThread() as thread,
  ):
    each.begin(thread, 0)
    each.begin(thread, 2)
    each.begin(thread, 3)  # not due: that of 2 had its turn
    each.collect()
    assert not rows()
    assert caplog.text.count("the evaluation of update 0 is not over") == 1
  assert time.monotonic() - began_at < 30
  assert not environment.num_open


def test_an_evaluation_that_is_lost_costs_itself_alone(tmp_path, caplog):
  environment = Few()
  environment.hangs = True
  with (
    validation(tmp_path, environment, **ONE_MODE) as (each, rows),
    ControllerThread() as thread,
  ):
    each.begin(thread, 0)
    collected(each, rows, 1)
    assert "an evaluation during RL is lost" in caplog.text
    environment.hangs = False
    each.begin(thread, 2)
    lost, scored = collected(each, rows, 2)
    assert lost.values["eval/lost/arithmetic"] == 4
    assert "eval/success" not in lost.values
    assert scored.values["eval/success"] == 1


KEEP = {"checkpoint.keep_best": "greedy"}


@pytest.mark.parametrize(
  ("changes", "said"),
  [
    ({"evaluation.every": 3}, "multiple of checkpoint.every=2"),
    ({"evaluation.split": "test"}, "tested on at the end"),
    (
      {"checkpoint.keep_best": "sampled", "evaluation.num_sampled_during": 0},
      "num_sampled_during above 0",
    ),
  ],
)
def test_a_best_version_that_cannot_be_known_is_refused(changes, said):
  with pytest.raises(ConfigError, match=said):
    read_settings(config_of(**KEEP | changes))


def test_the_best_is_the_newest_of_the_best_and_no_evaluation_of_few(tmp_path):
  with MetricsWriter(tmp_path) as metrics:
    for version, success, lost in (
      (0, 0.2, 0),
      (2, 0.8, 0),
      (4, 0.8, 0),
      (5, 0.6, 0),
      (6, 1.0, 1),  # the easy ones may be left
    ):
      for mode, value in (("greedy", success), ("sampled", 1.0 - success)):
        values = {"eval/success": value, "eval/lost/arithmetic": lost}
        metrics.write(version, values, f"validation_{mode}")
    metrics.write(7, {"eval/lost/arithmetic": 4}, "validation_greedy")
  with validation(tmp_path, **KEEP) as (each, _):
    assert (each.best, each.needed) == (4, [4])
  by_samples = {"checkpoint.keep_best": "sampled"}
  with validation(tmp_path, **by_samples) as (each, _):
    assert each.best == 0
  with validation(tmp_path) as (each, _):
    assert each.best is None


def test_the_version_that_is_evaluated_may_become_the_best(tmp_path):
  environment = Few()
  environment.hangs = True
  with (
    validation(tmp_path, environment, **KEEP) as (each, _),
    ControllerThread() as thread,
  ):
    each.begin(thread, 2)
    assert each.needed == [2]
    each.cancel()
    assert each.needed == []


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_run_ends_with_its_best_version(tmp_path, monkeypatch):
  greedy = {0: 0.1, 2: 0.9, 4: 0.2, 6: 0.3}

  def scored(scores):
    values = metrics_of(scores)
    if "arithmetic" in scores and scores["arithmetic"].num_tasks == 4:
      values["eval/success"] = greedy[next(versions)]
    return values

  versions = iter(greedy)
  monkeypatch.setattr("launch.run.evaluation.metrics_of", scored)
  config = config_of(**KEEP | {"evaluation.num_sampled_during": 0})
  config.workdir = str(tmp_path)
  config.evaluation.timeout_s = 600.0
  train(config)
  run = RunDirectory(tmp_path / "tiny")
  stored = sorted(int(path.name) for path in run.checkpoints("rl").iterdir())
  assert stored == [2, 4, 6]  # keep=2, and the best
  settings = read_settings(config)
  assert load_step(settings, run, "rl") == 2
  summary = read_summary(run.summary)
  assert summary.facts["final_policy"].startswith(
    "update 2 of 6, the best of 4 evaluations during RL (greedy, 90.0"
  )
  episodes = read_episodes(run, "rl", "greedy").values()
  assert {v for e in episodes for t in e.turns for v in t.version} == {2}
