"""Folders of Harbor tasks, for tests."""

import contextlib
import functools
import pathlib
import tempfile
import unittest

from agentrl_jax.data.split import SPLITS
from environments.os_interaction.machines.files import FILE, File
from tests.environments.harbor.generation import generate_files


def write_folder(root: pathlib.Path, files) -> pathlib.Path:
  """Writes the files of a task, given by path as texts or `File`s."""
  for path, file in files.items():
    file = file if isinstance(file, File) else a_file(file)
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_bytes(file.content)
    (root / path).chmod(file.mode)
  return root


@functools.cache
def generated_tasks(num=20):
  """Returns a folder that has generated tasks in train and in test."""
  folder = tempfile.TemporaryDirectory()
  for split in SPLITS:
    for index in range(num):
      path = pathlib.Path(folder.name) / split / f"task-{index:03d}"
      write_folder(path, generate_files(split, index))
  return folder  # which is removed with the last reference


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
