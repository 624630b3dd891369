"""A run's folder knows what is done, and refuses another run's settings."""

import contextlib
import os
import pathlib
import shutil
import signal
import tempfile
import time
from unittest import mock

from absl.testing import absltest

from agentrl_jax.errors import ConfigError, RunInUse
from configs import base
from launch.processes.group import Processes
from launch.processes.interrupts import Interrupted, listen
from launch.run.context import _removed_if_refused
from launch.run.groups.run_record import TrainedGroups
from launch.storage import run_directory
from launch.storage.run_directory import RunDirectory
from tests.clocks import wait_until


class RunDirectoryTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    folder = self.enter_context(tempfile.TemporaryDirectory())
    self.root = pathlib.Path(folder) / "run"
    self.run_directory = RunDirectory(self.root)

  def test_a_stage_is_done_when_it_ended_well(self):
    run = self.run_directory
    with self.assertRaises(ZeroDivisionError), run.stage("rl"):
      raise ZeroDivisionError
    self.assertFalse(run.is_done("rl"))
    with run.stage("rl"):
      pass
    self.assertTrue(run.is_done("rl"))
    self.assertGreater(run.seconds()["rl"], 0)

  def test_time_is_counted_over_starts_and_written_in_one_move(self):
    run = self.run_directory
    for _ in range(2):
      with self.assertRaises(ZeroDivisionError), run.stage("rl"):
        raise ZeroDivisionError
    # As a kill in the midst of writing leaves it.
    (run.root / "done" / "rl.written").write_text("")
    with run.stage("rl"):
      pass
    left = sorted(p.name for p in (run.root / "done").iterdir())
    self.assertEqual(left, ["rl.json"])

  def test_time_outside_all_stages_is_other_time(self):
    run = self.run_directory
    self.assertNotIn("other", run.seconds())
    with run.stage("run"):
      with run.stage("rl"):
        pass
      self.assertEqual(list(run.seconds()), ["rl"])
      time.sleep(0.02)
    seconds = run.seconds()
    self.assertEqual(list(seconds), ["rl", "other"])
    self.assertGreaterEqual(seconds["other"], 0.02)

  def test_other_time_is_never_negative(self):
    """A kill loses the whole run's time, but no finished stage's."""
    run = self.run_directory
    with run.stage("rl"):
      time.sleep(0.02)
    with run.stage("run"):
      pass
    self.assertEqual(list(run.seconds()), ["rl"])

  def begin(self, config):
    self.run_directory.keep_config(config)
    with self.run_directory.stage("tokenizer"):
      pass

  def test_a_start_that_finished_nothing_binds_nobody(self):
    config = base.get_config()
    self.run_directory.keep_config(config)
    stale = (self.run_directory.first_prompts, self.run_directory.tokenizer)
    for path in stale:
      path.write_text("{}")
    stage = self.run_directory.stage("tokenizer")
    with self.assertRaises(ZeroDivisionError), stage:
      raise ZeroDivisionError
    config.loss.clip_high = 0.3
    self.run_directory.keep_config(config)
    self.assertIn("clip_high: 0.3", (self.root / "config.yaml").read_text())
    self.assertFalse(any(path.exists() for path in stale))
    (self.root / "rl/10").mkdir(parents=True)  # as if updates had been saved
    config.loss.clip_high = 0.2
    with self.assertRaisesRegex(ConfigError, "loss.clip_high was 0.3"):
      self.run_directory.keep_config(config)

  def test_a_refusal_keeps_what_updates_have_left(self):
    for stage, is_kept in (("demonstrations", False), ("rl", True)):
      run = RunDirectory(self.root / stage)
      refused = _removed_if_refused(run, [run.root])
      with self.assertRaises(ConfigError), refused, run.stage(stage):
        raise ConfigError("the agents' program has ended three times")
      self.assertEqual(run.root.exists(), is_kept, stage)

  def test_what_may_change_is_the_same_run_and_others_are_named(self):
    config = base.get_config()
    config.environments.dbbench.place.controller = "http://10.0.0.2:5020/api"
    config.agents.port = 7200
    self.begin(config)
    config.environments.dbbench.place.controller = "http://10.0.0.3:5020/api"
    config.agents.update(host="0.0.0.0", port=7201)
    config.environments.webshop.place.worker = "http://10.0.0.3:5021/api"
    config.environments.webshop.place.token_file = "env:TOKEN"
    config.checkpoint.resume_step = 5
    RunDirectory(self.root).keep_config(config)
    config.environments.dbbench.place.options = ("engine=mariadb",)
    config.environments.dbbench.options.max_rounds = 3
    with self.assertRaisesRegex(
      ConfigError,
      r"settings: environments.dbbench.options.max_rounds was None and is 3; "
      r"environments.dbbench.place.options was None and is .'engine=mariadb'",
    ):
      RunDirectory(self.root).keep_config(config)

  def test_a_finished_run_may_get_more_updates_and_not_fewer(self):
    config = base.get_config()
    config.train.steps = 40
    run = self.run_directory
    run.keep_config(config)
    for stage in ("warm_start", "evaluate_rl_greedy", "rl", "run"):
      with run.stage(stage):
        pass
    ends = ("evaluations/rl_greedy.json", "summary.json")
    for name in (*ends, "evaluations/warm_start_greedy.json"):
      (self.root / name).write_text("{}")
    config.train.steps = 60
    RunDirectory(self.root).keep_config(config)
    done = {path.name for path in (self.root / "done").iterdir()}
    self.assertEqual(done, {"warm_start.json", "rl.partial", "run.partial"})
    moved = {path.name for path in (self.root / "earlier" / "40").iterdir()}
    self.assertEqual(moved, {"rl_greedy.json", "summary.json"})
    self.assertTrue(
      (self.root / "evaluations" / "warm_start_greedy.json").exists()
    )
    config.train.steps = 50
    with self.assertRaisesRegex(ConfigError, "train.steps was "):
      RunDirectory(self.root).keep_config(config)

  def test_more_updates_would_change_a_decay_of_the_learning_rate(self):
    config = base.get_config()
    config.optimizer.final_lr_ratio = 0.1
    self.begin(config)
    config.train.steps += 1
    with self.assertRaisesRegex(ConfigError, "train.steps was "):
      RunDirectory(self.root).keep_config(config)

  def test_two_processes_do_not_share_a_folder(self):
    with (
      self.run_directory.held(),
      self.assertRaisesRegex(RunInUse, "another process is at work"),
      RunDirectory(self.root).held(),
    ):
      self.fail("it was let in")
    with RunDirectory(self.root).held():
      pass


class PlayedOtherwiseTest(absltest.TestCase):
  def test_a_run_is_played_as_the_model_that_it_is(self):
    root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    config = base.get_config()
    self.assertEqual(run_directory.played_otherwise(root, config), "")
    RunDirectory(root).keep_config(config)
    self.assertEqual(run_directory.played_otherwise(root, config), "")
    config.optimizer.learning_rate = 10.0
    said = run_directory.played_otherwise(root, config)
    self.assertIn("optimizer.learning_rate was", said)
    with config.unlocked():
      config.model.newer_key = 1
    self.assertIn(
      "model.newer_key", run_directory.played_otherwise(root, config)
    )
    config.model.width = 10
    with self.assertRaisesRegex(ConfigError, "another model: model.width"):
      run_directory.played_otherwise(root, config)


class OwnerTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    folder = self.enter_context(tempfile.TemporaryDirectory())
    self.root = pathlib.Path(folder)
    self.first = self.owner()

  def owner(self, stage="rl", tokenizer="{}", **changes):
    """The owner of a run with these changes of the config."""
    config = base.get_config()
    config.update_from_flattened_dict(changes)
    run = RunDirectory(pathlib.Path(tempfile.mkdtemp(dir=self.root)) / "run")
    self.assertIsNone(run.owner(stage))
    run.keep_config(config)
    run.tokenizer.write_text(tokenizer)
    return run.owner(stage)

  def test_other_settings_seeds_and_tokenizers_are_other_runs(self):
    for changes in (
      {"seed": 77},
      {"loss.clip_high": 0.9},
      {"environments.dbbench.options.max_rounds": 3},
      {"tokenizer": '{"a": 1}'},
    ):
      self.assertNotEqual(self.owner(**changes), self.first, changes)
    self.assertNotEqual(
      self.owner("warm_start", seed=7), self.owner("warm_start")
    )

  def test_what_a_resume_may_change_is_the_same_run(self):
    self.assertEqual(
      self.owner(
        **{
          "name": "other",
          "workdir": "/elsewhere",
          "train.steps": 9,
          "mesh.fsdp": 2,
          "checkpoint.keep": 9,
          "environments.dbbench.place.worker": "http://other:1/api",
          "environments.alfworld.options.max_rounds": 3,  # is not played
        }
      ),
      self.first,
    )

  def test_runs_that_share_a_warm_start_agree_on_whose_it_is(self):
    self.assertEqual(
      self.owner("warm_start", **{"loss.clip_high": 0.9, "group.size": 4}),
      self.owner("warm_start"),
    )


class LedgerTest(absltest.TestCase):
  def test_strikes_out_what_is_not_in_the_policy(self):
    folder = self.enter_context(tempfile.TemporaryDirectory())
    path = pathlib.Path(folder) / "ledger.jsonl"
    ledger = TrainedGroups(path)
    for version in range(4):
      ledger.add(version, [f"g{version}"])
    with path.open("a") as file:
      file.write('{"version": 4, "gro')  # killed while writing
    ledger.truncate(2)
    ledger.add(2, ["again"])
    lines = path.read_text().splitlines()
    self.assertEqual(
      [line for line in lines if '"g2"' in line or '"g3"' in line], []
    )
    self.assertLen(lines, 3)


class CheckpointsElsewhereTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    folder = self.enter_context(tempfile.TemporaryDirectory())
    self.root = pathlib.Path(folder) / "one"

  def test_in_a_bucket_each_run_has_a_folder_of_its_own(self):
    names = ("a/one", "b/one", "one")
    runs = [
      RunDirectory(self.root.parent / name, "gs://bucket/runs")
      for name in names
    ]
    places = [run.checkpoints("rl").as_posix() for run in runs]
    self.assertLen({*places}, 3)
    for place in places:
      self.assertRegex(place, "^gs://bucket/runs/one-[0-9a-f]{8}/rl$")
    for name, place in zip(names, places, strict=True):
      again = RunDirectory(self.root.parent / name, "gs://bucket/runs")
      self.assertEqual(again.checkpoints("rl").as_posix(), place)

  def test_whoever_reads_a_run_finds_them_where_it_is_moved(self):
    config = base.get_config()
    config.checkpoint.directory = "gs://bucket/runs"
    run = RunDirectory(self.root, "gs://bucket/runs")
    run.keep_config(config)
    moved = self.root.rename(self.root.parent / "two")
    found = RunDirectory(moved).checkpoints("warm_start")
    self.assertEqual(found, run.checkpoints("warm_start"))

  def test_a_run_that_is_removed_leaves_none_to_the_next(self):
    first = RunDirectory(self.root, str(self.root.parent / "shared"))
    shutil.rmtree(self.root)
    second = RunDirectory(self.root, str(self.root.parent / "shared"))
    self.assertNotEqual(first.checkpoints("rl"), second.checkpoints("rl"))

  def test_a_copy_of_a_run_does_not_write_into_its_checkpoints(self):
    config = base.get_config()
    config.checkpoint.directory = str(self.root.parent / "shared")
    RunDirectory(self.root, config.checkpoint.directory).keep_config(config)
    copy = self.root.with_name("copy")
    shutil.copytree(self.root, copy)
    with self.assertRaisesRegex(ConfigError, "copy is a copy of .*/one, whose"):
      RunDirectory(copy, config.checkpoint.directory).keep_config(config)
    self.assertEqual(
      RunDirectory(copy).checkpoints("rl"),
      RunDirectory(self.root).checkpoints("rl"),
    )
    RunDirectory(self.root).keep_config(config)
    shutil.rmtree(self.root)
    for _ in range(2):
      RunDirectory(copy, config.checkpoint.directory).keep_config(config)

  def test_a_folder_that_is_moved_with_the_run(self):
    before = self.root.parent / "before"
    run = RunDirectory(before / "runs" / "one", str(before / "shared"))
    run.checkpoints("rl").mkdir(parents=True)
    after = before.rename(self.root.parent / "after")
    found = RunDirectory(after / "runs" / "one", str(after / "shared"))
    self.assertTrue(found.checkpoints("rl").exists())

  def test_of_a_run_from_before_they_had_a_folder_of_their_own(self):
    config = base.get_config()
    config.checkpoint.directory = "gs://bucket/runs"
    RunDirectory(self.root, "").keep_config(config)
    for run in (
      RunDirectory(self.root),
      RunDirectory(self.root, "gs://bucket/runs"),
    ):
      self.assertEqual(
        run.checkpoints("rl").as_posix(), "gs://bucket/runs/one/rl"
      )

  def test_in_the_runs_folder_by_default(self):
    found = RunDirectory(self.root).checkpoints("rl")
    self.assertEqual(pathlib.Path(found), self.root / "rl")


def _listen(grace_s=300.0):
  return listen(Processes(), grace_s, lambda: "no checkpoint yet")


@contextlib.contextmanager
def _told():
  """Yields a list that gets what is written to file 2, also by a handler."""
  lines, kept = [], os.dup(2)
  with tempfile.TemporaryFile("w+") as file:
    os.dup2(file.fileno(), 2)
    try:
      yield lines
    finally:
      os.dup2(kept, 2)
      os.close(kept)
      file.seek(0)
      lines += file.read().split("\n")


class InterruptsTest(absltest.TestCase):
  def test_a_signal_is_a_question(self):
    saved = []
    with _listen() as interrupts:
      interrupts.check(lambda: saved.append("early"))
      signal.raise_signal(signal.SIGTERM)
      with self.assertRaises(Interrupted) as caught:
        interrupts.check(lambda: saved.append("late"))
    self.assertEqual(saved, ["late"])
    self.assertEqual(caught.exception.code, 128 + signal.SIGTERM)

  def test_a_second_one_from_the_keyboard_acts(self):
    for before in (signal.default_int_handler, signal.SIG_IGN):
      ours = signal.signal(signal.SIGINT, before)
      try:
        with self.subTest(before=before), _told() as said:
          with _listen(), self.assertRaises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
          self.assertEqual(signal.getsignal(signal.SIGINT), before)
      finally:
        signal.signal(signal.SIGINT, ours)
      self.assertIn(
        "SIGINT: stopping after this update; ctrl-C again ends it now", said
      )
      self.assertIn("ended at once; kept: no checkpoint yet", said)

  def test_a_notice_that_is_repeated_changes_nothing(self):
    with _listen() as interrupts:
      signal.raise_signal(signal.SIGTERM)
      signal.raise_signal(signal.SIGTERM)
      self.assertEqual(interrupts.received, signal.SIGTERM)

  def test_acts_at_once_where_there_is_nothing_to_save(self):
    with _listen() as interrupts:
      with self.assertRaises(Interrupted), interrupts.at_once():
        signal.raise_signal(signal.SIGTERM)
        self.fail("the signal did not act")
      with self.assertRaises(Interrupted), interrupts.at_once():
        self.fail("the signal was forgotten")

  def test_a_process_ends_when_its_grace_period_does(self):
    with mock.patch.object(os, "_exit") as ended, _listen(grace_s=0.05):
      signal.raise_signal(signal.SIGTERM)
      wait_until(lambda: ended.called)
    ended.assert_called_once_with(1)

  def test_who_has_saved_in_time_may_live(self):
    with mock.patch.object(os, "_exit") as ended:
      with _listen() as interrupts:
        signal.raise_signal(signal.SIGTERM)
      interrupts._timer.join(60)
      self.assertFalse(interrupts._timer.is_alive())
    ended.assert_not_called()

  def test_handlers_are_put_back(self):
    before = signal.getsignal(signal.SIGTERM)
    with _listen():
      self.assertNotEqual(signal.getsignal(signal.SIGTERM), before)
    self.assertEqual(signal.getsignal(signal.SIGTERM), before)
