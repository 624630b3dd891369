"""Stages that runs share, and locks: who waits, copies, or is left alone."""

import contextlib
import fcntl
import json
import os
import pathlib
import tempfile
import threading

from absl.testing import absltest

from agentrl_jax.errors import (
  ConfigError,
  DeadlineExceeded,
  NotWritten,
  RunInUse,
)
from launch.storage.lock import held, is_held
from launch.storage.shared_stages import SharedStages, shared_facts, shared_keys
from tests.launch import tiny

WAIT_S = 5.0


class SharedStagesTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

  def stages(self, **changes):
    config = tiny.get_config()
    config.warm_start.store = str(self.root / "stages")
    config.update_from_flattened_dict(changes)
    return SharedStages(config)

  def run_with(self, name, text="made"):
    """A run's folder, after its stages before RL."""
    run = self.root / name
    for file in (
      "tokenizer.json",
      "warm_start/750/state",
      "evaluations/warm_start_greedy.json",
      "done/warm_start.json",
      "metrics.jsonl",
    ):
      (run / file).parent.mkdir(parents=True, exist_ok=True)
      (run / file).write_text(text)
    return run

  def make(self):
    made = self.run_with("first")
    stages = self.stages()
    with stages.begun(made, timeout_s=WAIT_S):
      stages.keep(made, {"run": "first"})

  def test_another_run_begins_with_a_copy(self):
    self.make()
    run = self.root / "second"
    run.mkdir()
    with self.stages().begun(run, timeout_s=WAIT_S):
      pass
    self.assertEqual((run / "warm_start/750/state").read_text(), "made")
    self.assertEqual(shared_facts(run)["stages_before_rl"]["run"], "first")

  def test_what_another_program_plays_is_not_shared_if_it_is_evaluated(self):
    """Of training alone a program is no part of the stages before it."""
    for changes, is_evaluated in (
      ({}, False),
      ({"evaluation.agents": True}, True),
      ({"warm_start.epochs": 0}, True),  # tasks may be of agents alone
      ({"warm_start.epochs": 0, "agents.port": -1}, False),
    ):
      found = []
      for program in ("one", "other"):
        config = tiny.get_config()
        config.agents.update(port=0, program=program)
        config.update_from_flattened_dict(changes)
        found.append(shared_keys(config))
      with self.subTest(**changes):
        self.assertEqual(found[0] != found[1], is_evaluated)
        # Else stages that were kept before there was this key are found again.
        self.assertEqual("evaluation.agents" in found[0], is_evaluated)

  def test_what_changes_a_score_before_rl_shares_no_stages(self):
    place = "environments.arithmetic.place"
    for changes, is_shared in (
      ({"subagent.tool": "delegate"}, False),
      ({"engine.weights": "int8"}, False),
      ({f"{place}.options": ("engine=mariadb",)}, False),
      ({f"{place}.controller": "http://a"}, True),
      ({"optimizer.learning_rate": 1.0}, True),
      ({"tasks.held_out": ("arithmetic",)}, True),
    ):
      config = tiny.get_config()
      with self.subTest(**changes):
        before = shared_keys(config)
        config.update_from_flattened_dict(changes)
        self.assertEqual(before == shared_keys(config), is_shared)

  def test_another_template_in_the_same_file_shares_no_stages(self):
    config = tiny.get_config()
    file = self.root / "chat.jinja"
    config.chat.template = str(file)
    found = []
    for text in ("one", "another"):
      file.write_text(text)
      found.append(shared_keys(config))
    self.assertNotEqual(*found)

  def test_other_tasks_in_the_same_files_share_no_stages(self):
    config = tiny.get_config()
    config.tasks.names = ("dbbench",)
    folder = self.root / "tasks"
    folder.mkdir()
    file = folder / "train.jsonl"
    for source in (folder, file):
      config.environments.dbbench.options.source = str(source)
      found = []
      for text in ("one", "another", "another"):
        if not file.exists() or file.read_text() != text:
          file.write_text(text)
        found.append(shared_keys(config))
      self.assertNotEqual(found[0], found[1])
      self.assertEqual(found[1], found[2])
      config.tasks.names = ("arithmetic",)  # files of no task that is played
      self.assertFalse([key for key in shared_keys(config) if ": files" in key])
      config.tasks.names = ("dbbench",)

  def test_tasks_that_are_held_out_have_demonstrations_of_their_own(self):
    """Evaluations during RL have none of theirs, so all are demonstrated."""
    config = tiny.get_config()
    config.evaluation.every = 2
    before = shared_keys(config)
    config.tasks.held_out = ("arithmetic",)
    self.assertNotEqual(before, shared_keys(config))
    config.evaluation.split = "test"  # of which there are no demonstrations
    before = shared_keys(config)
    config.tasks.held_out = ()
    self.assertEqual(before, shared_keys(config))

  def test_half_a_copy_is_made_again(self):
    self.make()
    run = self.run_with("killed", "half")
    with self.stages().begun(run, timeout_s=WAIT_S):
      pass
    self.assertEqual((run / "tokenizer.json").read_text(), "made")
    self.assertEqual((run / "warm_start/750/state").read_text(), "made")

  def test_a_run_whose_rl_has_begun_keeps_its_own(self):
    self.make()
    run = self.run_with("later", "own")
    (run / "trained_groups.jsonl").touch()
    with self.stages().begun(run, timeout_s=WAIT_S):
      pass
    self.assertEqual((run / "tokenizer.json").read_text(), "own")
    self.assertEqual(shared_facts(run), {})

  def test_no_rl_gets_into_the_store(self):
    made = self.run_with("first")
    for name in ("evaluations/rl_greedy.json", "done/rl.json", "done/run.json"):
      (made / name).write_text("rl")
    stages = self.stages()
    with stages.begun(made, timeout_s=WAIT_S):
      stages.keep(made, {})
    (store,) = (self.root / "stages").glob("*/shared.json")
    names = [p.name for p in store.parent.rglob("*") if p.is_file()]
    self.assertNoCommonElements(
      names, ["rl_greedy.json", "rl.json", "run.json"]
    )
    self.assertIn("keys", json.loads(store.read_text()))

  def test_one_makes_them_and_others_wait_with_a_deadline(self):
    with self.stages().begun(self.run_with("first"), timeout_s=WAIT_S):
      other = self.stages().begun(self.root / "second", timeout_s=0.1)
      with self.assertRaisesRegex(DeadlineExceeded, "waited 0.1 s"), other:
        self.fail("it did not wait")
      # Of another seed nobody waits.
      with self.stages(seed=1).begun(self.root / "third", timeout_s=0.1):
        pass

  def test_checkpoints_elsewhere_are_refused(self):
    with self.assertRaisesRegex(ConfigError, "set one of them"):
      self.stages(**{"checkpoint.directory": "gs://b"})


class LockTest(absltest.TestCase):
  def test_looking_keeps_nobody_out(self):
    with tempfile.TemporaryDirectory() as folder:
      path = pathlib.Path(folder) / "lock"
      path.touch()
      is_over = threading.Event()

      def look():
        while not is_over.is_set():
          is_held(path)

      looking = threading.Thread(target=look)
      looking.start()
      let_in = 0
      try:
        for _ in range(200):
          with held(path, "in use"):  # raises if a look holds it
            let_in += 1
      finally:
        is_over.set()
        looking.join()
      self.assertEqual(let_in, 200)

  def test_one_that_is_held_keeps_others_out(self):
    with tempfile.TemporaryDirectory() as folder:
      path = pathlib.Path(folder) / "lock"
      self.assertFalse(is_held(path))
      with held(path, "in use"):
        self.assertTrue(is_held(path))
        with self.assertRaisesRegex(RunInUse, "in use"), held(path, "in use"):
          self.fail("it was let in")
      self.assertFalse(is_held(path))

  def test_a_look_needs_no_more_than_to_read(self):
    """As at the run of another user."""
    with (
      tempfile.TemporaryDirectory() as folder,
      contextlib.chdir(folder),  # folders around it may be the user's alone
      contextlib.ExitStack() as after,
    ):
      path = pathlib.Path("lock")
      path.touch(0o444)
      pathlib.Path(folder).chmod(0o755)
      if not os.geteuid():  # whom no mode of a file keeps out
        after.callback(os.seteuid, 0)
        os.seteuid(65534)
      self.assertFalse(is_held(path))
      with path.open() as reader:  # another look
        fcntl.flock(reader, fcntl.LOCK_SH)
        self.assertFalse(is_held(path))
        fcntl.flock(reader, fcntl.LOCK_EX)
        self.assertTrue(is_held(path))

  def test_one_that_cannot_be_written_is_a_sentence(self):
    with tempfile.TemporaryDirectory() as folder:
      path = pathlib.Path(folder)
      with self.assertRaises(NotWritten), held(path, "in use"):
        self.fail("a folder was locked")


if __name__ == "__main__":
  absltest.main()
