"""AgentBench's files load in all their forms."""

import json
import pathlib
import tempfile
import unittest

from agentrl_jax.data.records import Task
from agentrl_jax.errors import ConfigError
from environments.os_interaction.environment import OSInteraction
from environments.os_interaction.tasks.agentbench import load_problems
from environments.os_interaction.tasks.problem import AnswerMatch, Script
from tests.environments.os_interaction.data import tasks

BASH = Script("bash", "true")


class LoadTest(unittest.TestCase):
  def setUp(self):
    self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

  def load(self, *entries, name="tasks.json", scripts=""):
    path = self.folder / "data" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if name.endswith(".jsonl"):
      path.write_text("\n".join(map(json.dumps, entries)))
    else:
      path.write_text(json.dumps(list(entries)))
    return load_problems(path, scripts)

  def load_one(self, **entry):
    entry = {"description": "d", "evaluation": {"match": "1"}} | entry
    return self.load(entry)[0]

  def test_scripts_are_text_or_code_or_lists_of_them(self):
    for init, expected in (
      ("true", (BASH,)),
      ({"code": "true"}, (BASH,)),
      ({"language": "python", "code": "x"}, (Script("python", "x"),)),
      (["true", {"code": "true"}], (BASH, BASH)),
      (None, ()),
    ):
      with self.subTest(init=init):
        problem = self.load_one(create={"init": init, "local": "packages"})
        self.assertEqual(problem.init, expected)
        self.assertEqual(problem.image, "packages")

  def test_a_list_for_create_is_a_default_machine(self):
    problem = self.load_one(
      create=[None, {"language": "python", "file": "x.py"}]
    )
    self.assertEqual((problem.image, problem.init), ("default", ()))
    self.assertEqual(self.load_one().image, "default")

  def test_match_is_text_or_a_rule(self):
    for rule, expected in (
      ("7", AnswerMatch("7")),
      ({"answer": "7", "strip": False}, AnswerMatch("7", strip=False)),
      ({"regex": "^7", "strip": True}, AnswerMatch(None, "^7")),
      ({"regex": "^7"}, AnswerMatch(None, "^7")),
    ):
      with self.subTest(rule=rule):
        problem = self.load_one(evaluation={"match": rule})
        self.assertEqual((problem.match, problem.check), (expected, ()))

  def test_checks_stand_alone_or_in_a_list_where_null_is_the_example(self):
    evaluation = {"check": [None, "true"], "example": {"code": "true"}}
    problem = self.load_one(evaluation=evaluation, start="true")
    self.assertEqual(problem.check, (None, BASH))
    self.assertEqual((problem.example, problem.start), (BASH, BASH))
    self.assertEqual(self.load_one(evaluation={"check": "true"}).check, (BASH,))

  def test_files_are_found_as_agentbench_keeps_them(self):
    for number, (task, scripts) in enumerate(
      (
        ("data/dev.json", "scripts/dev"),
        ("data/1/stock.json", "scripts/1"),
        ("data/mine.json", "data"),
      )
    ):
      with self.subTest(task=task):
        name = f"init/{number}.sh"
        file = self.folder / scripts / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("echo file")
        (problem,) = self.load(
          {
            "description": "d",
            "create": {"init": {"file": name}},
            "evaluation": {"match": "1"},
          },
          name=task.removeprefix("data/"),
        )
        self.assertEqual(problem.init, (Script("bash", "echo file", name),))

  def test_files_are_found_in_the_given_folder(self):
    (self.folder / "mine").mkdir()
    (self.folder / "mine" / "x.sh").write_text("echo mine")
    entry = {"description": "d", "evaluation": {"check": {"file": "x.sh"}}}
    (problem,) = self.load(entry, scripts=str(self.folder / "mine"))
    self.assertEqual(problem.check, (Script("bash", "echo mine", "x.sh"),))
    with self.assertRaisesRegex(ConfigError, "not a folder"):
      self.load(entry, scripts="/no/such/folder")

  def test_a_missing_file_has_a_name_and_no_code(self):
    problem = self.load_one(evaluation={"check": {"file": "check/in.py"}})
    self.assertEqual(problem.check, (Script("bash", None, "check/in.py"),))

  def test_lines_of_json_are_tasks(self):
    entry = {"description": "d\u2028e", "evaluation": {"match": "1"}}
    problems = self.load(entry, entry, name="tasks.jsonl")
    self.assertEqual([p.description for p in problems], ["d\u2028e"] * 2)

  def test_entries_that_are_no_tasks_are_refused(self):
    for entry in (
      {"description": "d"},
      {"description": "d", "evaluation": {}},
      {"evaluation": {"match": "1"}},
      {"description": "d", "evaluation": {"check": {"language": "bash"}}},
      {
        "description": "d",
        "evaluation": {"check": {"language": "perl", "code": "1"}},
      },
    ):
      with self.subTest(entry=entry), self.assertRaises(ConfigError):
        self.load(entry)

  def test_folders_are_splits_with_scripts_of_their_own(self):
    """AgentBench's layout: data/1/*.json has its scripts in scripts/1."""
    for part in ("9", "10"):
      entry = {
        "description": part,
        "evaluation": {"check": {"file": "check.sh"}},
      }
      self.load(entry, name=f"{part}/a.json")
      script = self.folder / "scripts" / part / "check.sh"
      script.parent.mkdir(parents=True)
      script.write_text(f"true {part}")
    environment = OSInteraction(
      source=f"train={self.folder}/data/9,std={self.folder}/data",
      engine=object(),  # nothing is played
    )
    self.assertEqual(
      {split: len(environment.indices(split)) for split in ("train", "std")},
      {"train": 1, "std": 2},
    )
    self.assertEqual(len(environment.indices("test")), 1 << 20)
    found = [
      environment.find(Task("os_interaction", "std", n)) for n in range(2)
    ]
    self.assertEqual([p.description for p in found], ["9", "10"])
    self.assertEqual([p.check[0].code for p in found], ["true 9", "true 10"])
    trained_on = environment.find(Task("os_interaction", "train", 0))
    self.assertEqual(trained_on, found[0])

  def test_the_real_files(self):
    dev, train = (
      load_problems(tasks("dev.json")),
      load_problems(tasks("train.json")),
    )
    self.assertEqual((len(dev), len(train)), (26, 1000))
    self.assertEqual(sum(p.match is not None for p in dev), 5)
    for problem in train:
      self.assertIsNone(problem.check[0])
      self.assertIsNotNone(problem.example)
