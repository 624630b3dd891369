"""Tests of the compile cache: two runs of one process keep apart."""

import pathlib

import jax
import numpy as np

from launch.storage.compile_cache import compile_cache


def compile_with(constant):
  jax.jit(lambda x: x * constant)(np.ones(3))


def programs_in(folder: pathlib.Path) -> set[str]:
  return {path.name for path in folder.glob("*")}


def test_each_run_has_its_own_programs_and_afterwards_none_is_kept(tmp_path):
  before = jax.config.jax_compilation_cache_dir
  folders = [tmp_path / name / "compiled" for name in ("first", "second")]
  for number, folder in enumerate(folders):
    with compile_cache(folder.parent, "compiled"):
      compile_with(12.5 + number)
    assert programs_in(folder)
  kept = [programs_in(folder) for folder in folders]
  assert kept[0] != kept[1]
  compile_with(99.5)
  assert [programs_in(folder) for folder in folders] == kept
  assert jax.config.jax_compilation_cache_dir == before


def test_no_folder_changes_nothing(tmp_path):
  before = jax.config.jax_compilation_cache_dir
  with compile_cache(tmp_path, ""):
    assert jax.config.jax_compilation_cache_dir == before
