"""Tests of the compile cache: two runs of one process keep apart."""

import pathlib

import jax
import numpy as np
import pytest

from configs import base
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


def test_runs_of_a_workdir_find_each_others_programs(tmp_path):
  for name in ("first", "second"):
    with compile_cache(tmp_path / name, base.get_config().compile_cache):
      compile_with(7.25)
    kept = programs_in(tmp_path / "compiled")
    if name == "first":
      first = kept
  assert first
  assert kept == first


def test_a_program_that_was_cut_short_is_compiled_again(tmp_path):
  with compile_cache(tmp_path, "compiled"):
    compile_with(3.75)
  for path in (tmp_path / "compiled").glob("*-cache"):
    path.write_bytes(path.read_bytes()[:40])
  jax.clear_caches()
  with (
    compile_cache(tmp_path, "compiled"),
    pytest.warns(UserWarning, match="persistent compilation cache"),
  ):
    compile_with(3.75)


def test_no_folder_changes_nothing(tmp_path):
  before = jax.config.jax_compilation_cache_dir
  with compile_cache(tmp_path, ""):
    assert jax.config.jax_compilation_cache_dir == before
