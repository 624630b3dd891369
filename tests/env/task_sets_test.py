"""Tests of `env.task_sets`: names, folders, order, and what is refused."""

import json
import pathlib
import tempfile

from absl.testing import parameterized

from agentrl_jax.env.task_sets import find_sets, read_sets
from agentrl_jax.errors import ConfigError


def _read(path):
  if not path.is_file():
    raise ConfigError(f"{path} is not a file")
  return json.loads(path.read_text())


class TaskSetsTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(
      self.enter_context(tempfile.TemporaryDirectory())
    )

  def write(self, *names):
    for name in names:
      path = self.folder / name
      path.parent.mkdir(parents=True, exist_ok=True)
      path.write_text(json.dumps([name]))

  def read(self, source):
    return read_sets(source.replace("~", str(self.folder)), _read)

  def test_nothing_is_no_set(self):
    self.assertEqual(read_sets("", _read), {})

  def test_one_file_is_dev(self):
    self.write("std.json")
    self.assertEqual(self.read("~/std.json"), {"dev": ("std.json",)})

  def test_folder_has_its_own_name_and_the_order_of_numbers(self):
    self.write("os/b10.json", "os/b9.json", "os/a.jsonl", "os/notes.txt")
    found = self.read("~/os")
    self.assertEqual(found, {"os": ("os/a.jsonl", "os/b9.json", "os/b10.json")})

  def test_folders_within_are_read_if_there_is_no_file(self):
    self.write("os/10/a.json", "os/2/b.json", "os/2/deep/c.json")
    self.assertEqual(
      self.read("std=~/os"), {"std": ("os/2/b.json", "os/10/a.json")}
    )

  def test_files_beside_folders_leave_the_folders_out(self):
    self.write("kg/std.json", "kg/ontology/vocab.json")
    self.assertEqual(self.read("~/kg"), {"kg": ("kg/std.json",)})

  def test_several_sets(self):
    self.write("a.json", "b/1.json")
    self.assertEqual(
      self.read("train=~/a.json,std=~/b"),
      {"train": ("a.json",), "std": ("b/1.json",)},
    )

  def test_path_that_exists_may_have_any_characters(self):
    self.write("x=1,y=2/a.json")
    self.assertEqual(
      self.read("~/x=1,y=2/a.json"), {"dev": ("x=1,y=2/a.json",)}
    )

  @parameterized.parameters(
    ("=~/a.json", "'' is no name of a set"),
    ("my set=~/a.json", "'my set' is no name"),
    ("~/a.json,~/b.json", "two sets called dev"),
    ("std=~/a.json,std=~/b.json", "two sets called std"),
    ("std=~/empty", "no file that ends with .json or .jsonl"),
    ("std=~/none.json", "none.json is not a file"),
    ("~/none", "none is not a file"),
    ("std=~/void.json", "holds no task"),
  )
  def test_refuses(self, source, message):
    self.write("a.json", "b.json")
    (self.folder / "empty").mkdir()
    (self.folder / "void.json").write_text("[]")
    with self.assertRaisesRegex(ConfigError, message):
      self.read(source)

  def test_paths_are_found_without_reading(self):
    self.assertEqual(
      find_sets("std=a/b.json"), {"std": pathlib.Path("a/b.json")}
    )
