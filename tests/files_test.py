"""Tests of `agentrl_jax.files`: whole files, or none, and a sentence."""

import csv
import errno
import io
import pathlib
import tempfile
from unittest import mock

from absl.testing import parameterized

from agentrl_jax import files
from agentrl_jax.errors import AgentRLError, ConfigError, NotWritten

FULL = OSError(errno.ENOSPC, "No space left on device")


class FullDisk(io.FileIO):
  """A file on a disk that has room for five more bytes."""

  def write(self, data):
    super().write(bytes(data)[:5])
    raise FULL


class FilesTest(parameterized.TestCase):
  def setUp(self):
    self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    self.path = self.folder / "a"

  def test_whole_files_replace_each_other(self):
    for text in ("one", "°", ""):
      files.write_whole(self.path, text)
      self.assertEqual(self.path.read_text("utf-8"), text)
    self.assertEqual([p.name for p in self.folder.iterdir()], ["a"])

  def test_a_full_disk_keeps_the_last_whole_file(self):
    files.write_whole(self.path, "before")

    def half(path, data):
      with path.open("wb") as file:
        file.write(data[:3])
      raise FULL

    with (
      mock.patch.object(pathlib.Path, "write_bytes", half),
      self.assertRaisesRegex(NotWritten, "a cannot be .* No space.* MB are fr"),
    ):
      files.write_whole(self.path, "later")
    self.assertEqual(self.path.read_text(), "before")
    self.assertEqual([p.name for p in self.folder.iterdir()], ["a"])

  def test_a_line_is_appended_whole_or_not_at_all(self):
    files.append_whole(self.path, "first\n")
    with (
      FullDisk(self.path, "a") as file,
      self.assertRaisesRegex(NotWritten, "a cannot be written: No space"),
    ):
      files.append_whole(self.path, "second, which is longer\n", file)
    self.assertEqual(self.path.read_text(), "first\n")
    files.append_whole(self.path, "third\n")
    self.assertEqual(self.path.read_text(), "first\nthird\n")

  def test_a_short_write_goes_on(self):
    class Slow(io.FileIO):
      def write(self, data):
        return super().write(bytes(data)[:2])

    with Slow(self.path, "a") as file:
      files.append_whole(self.path, "first\n", file)
    self.assertEqual(self.path.read_text(), "first\n")

  def test_a_folder_that_does_not_exist_is_named(self):
    path = self.folder / "no" / "such" / "file"
    with self.assertRaisesRegex(NotWritten, f"{path} cannot be written"):
      files.write_whole(path, "")
    self.assertTrue(issubclass(NotWritten, AgentRLError))

  @parameterized.parameters(
    ValueError("x"),
    KeyError("x"),
    TypeError("x"),
    AttributeError("x"),
    IndexError("x"),
    EOFError("x"),
    csv.Error("x"),
  )
  def test_damage_is_a_config_error(self, error):
    with (
      self.assertRaisesRegex(ConfigError, f"{self.path} cannot be read.* .?x"),
      files.reading(self.path),
    ):
      raise error

  def test_other_errors_pass(self):
    with (
      self.assertRaisesRegex(ConfigError, "^as it is$"),
      files.reading(self.path),
    ):
      raise ConfigError("as it is")
    with (
      self.assertRaises(ZeroDivisionError),
      files.reading(self.path),
      files.writing(self.path),
    ):
      raise ZeroDivisionError
