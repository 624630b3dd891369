"""Folders of Harbor tasks, for tests."""

import contextlib
import pathlib
import unittest

from environments.harbor.generation import generate_files
from environments.os_interaction.machines.files import FILE, File


def write_folder(root: pathlib.Path, files) -> pathlib.Path:
  """Writes the files of a task, given by path as texts or `File`s."""
  for path, file in files.items():
    file = file if isinstance(file, File) else a_file(file)
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_bytes(file.content)
    (root / path).chmod(file.mode)
  return root


def a_file(text: str) -> File:
  return File(FILE, 0o644, 0, 0, text.encode())


def files_with(kind="write", **changed):
  """Returns a generated task's files with some replaced; None removes one.

  Names of files have __ for / and _dot_ for a point.
  """
  files = dict(generate_files("train", 0, (kind,)))
  for name, text in changed.items():
    path = name.replace("__", "/").replace("_dot_", ".")
    files.pop(path, None)
    if text is not None:
      files[path] = a_file(text)
  return files


def harbor_or_skip(name: str):
  """Imports a module of harbor, which needs Python 3.12 as a whole."""
  with contextlib.suppress(ImportError):
    return __import__(name, fromlist=["_"])
  raise unittest.SkipTest("no harbor: `make originals` installs it")
