"""BFCL as a whole: the contract, the splits, the options."""

import json
import pathlib
import tempfile
import unittest

from agentrl_jax.data.trajectory import Task
from agentrl_jax.env.contract import SessionContract
from agentrl_jax.errors import ConfigError
from environments.bfcl import BFCL
from environments.bfcl.suite import CATEGORIES, data_folder
from tests.environments.bfcl.packages import play, require_packages


class BFCLContractTest(SessionContract, unittest.IsolatedAsyncioTestCase):
  splits = ("train", "test")
  max_steps = 400  # of nonsense: 21 answers in every turn of the user's
  max_reply_chars = 300_000  # BFCL repeats what it is given, twice at most

  def make_environment(self):
    require_packages()
    return BFCL()


class LongContextContractTest(
  SessionContract, unittest.IsolatedAsyncioTestCase
):
  splits = ("long_context",)
  num_tasks = 2
  max_steps = 400
  max_reply_chars = 300_000

  def make_environment(self):
    require_packages()
    return BFCL(categories=("long_context",))


class SplitsTest(unittest.TestCase):
  def setUp(self):
    require_packages()
    self.environment = BFCL()

  def _numbers(self, split):
    return {p.number for p in self.environment._problems(split)}

  def test_a_scenario_is_on_one_side_in_every_category(self):
    train, test = self._numbers("train"), self._numbers("test")
    self.assertEqual(train & test, set())
    self.assertEqual(len(train | test), 200)
    self.assertGreater(len(train), 50)
    self.assertGreater(len(test), 50)

  def test_halves_are_all_tasks_once(self):
    ids = [
      problem.id
      for split in ("train", "test")
      for problem in self.environment._problems(split)
    ]
    self.assertEqual(len(ids), 800)
    self.assertEqual(len(set(ids)), 800)

  def test_no_opening_is_on_both_sides(self):
    sides = [
      {problem.questions[0] for problem in self.environment._problems(split)}
      - {()}
      for split in ("train", "test")
    ]
    self.assertEqual(sides[0] & sides[1], set())

  def test_categories_are_kept_to(self):
    environment = BFCL(categories=("miss_param",))
    self.assertEqual(len(environment.indices("miss_param")), 200)
    self.assertEqual(
      sum(len(environment.indices(split)) for split in ("train", "test")), 200
    )
    with self.assertRaisesRegex(ConfigError, "no split 'base'"):
      environment.indices("base")


class OptionsTest(unittest.TestCase):
  def setUp(self):
    require_packages()

  def test_wrong_options_are_refused(self):
    for options in (
      {"categories": "base"},
      {"categories": ()},
      {"categories": ("composite",)},
      {"max_steps": 0},
      {"source": "/no/such/folder"},
    ):
      with self.subTest(options=options), self.assertRaises(ConfigError):
        BFCL(**options)


class OutsideTest(unittest.IsolatedAsyncioTestCase):
  def setUp(self):
    require_packages()

  async def test_an_index_outside_is_refused(self):
    with self.assertRaisesRegex(ConfigError, "200 tasks"):
      async with BFCL().open(Task("bfcl", "base", 200), seed=0):
        pass


class SourceTest(unittest.IsolatedAsyncioTestCase):
  """A folder of one's own, in BFCL v3's names and with one task."""

  def setUp(self):
    require_packages()
    holder = tempfile.TemporaryDirectory()
    self.addCleanup(holder.cleanup)
    self.folder = pathlib.Path(holder.name)
    (self.folder / "possible_answer").mkdir()
    docs = self.folder / "multi_turn_func_doc"
    docs.symlink_to(data_folder("") / "multi_turn_func_doc")
    self.row = {
      "id": "multi_turn_base_0",
      "question": [[{"role": "user", "content": "Make a folder, please."}]],
      "initial_config": {},
      "involved_classes": ["GorillaFileSystem"],
    }

  def _write(self, gold):
    name = "BFCL_v3_multi_turn_base.json"
    answer = {"id": self.row["id"], "ground_truth": gold}
    (self.folder / name).write_text(json.dumps(self.row) + "\n")
    (self.folder / "possible_answer" / name).write_text(json.dumps(answer))
    return BFCL(source=str(self.folder), categories=("base",))

  async def test_is_played(self):
    environment = self._write([["mkdir(dir_name='a')", "mkdir('b')"]])
    task = Task("bfcl", "base", 0)
    expert = environment.expert(task, seed=0, mistakes={})
    _, steps, _ = await play(environment, task, expert)
    self.assertEqual(steps[0].messages[0].content, "Make a folder, please.")
    self.assertEqual([m.content for m in steps[1].messages], ["None", "None"])
    self.assertEqual(steps[-1].reward, 1.0)

  def test_what_is_no_task_is_refused(self):
    with self.assertRaisesRegex(ConfigError, "1 turns and gold for 2"):
      self._write([[], []])
    self.row["involved_classes"] = ["WebSearchAPI"]
    with self.assertRaisesRegex(ConfigError, "WebSearchAPI"):
      self._write([[]])
    with self.assertRaisesRegex(ConfigError, "no BFCL_v4_multi_turn_miss"):
      BFCL(source=str(self.folder), categories=("miss_func",))

  async def test_gold_that_is_no_call_is_refused(self):
    environment = self._write([["__import__('os').system('true')"]])
    with self.assertRaisesRegex(ConfigError, "not a call of a function"):
      environment.expert(Task("bfcl", "base", 0), seed=0, mistakes={})


class CategoriesTest(unittest.TestCase):
  def test_each_is_a_split(self):
    require_packages()
    environment = BFCL()
    for category in CATEGORIES:
      problems = environment._problems(category)
      with self.subTest(category=category):
        self.assertEqual({p.category for p in problems}, {category})


if __name__ == "__main__":
  unittest.main()
