"""Compiled programs as files, from which the next start of a process has them.

Learners and rollout servers of one run share a folder; each file is written
whole or not at all.
"""

import pathlib

import jax


def enable_compile_cache(run: pathlib.Path, folder: str) -> None:
  """Keeps programs in `folder`, within the run's unless it is absolute.

  "" keeps none.
  """
  if not folder:
    return
  for name, value in {
    "compilation_cache_dir": str(run.resolve() / folder),
    "persistent_cache_min_compile_time_secs": 0.0,
    "persistent_cache_min_entry_size_bytes": 0,
  }.items():
    jax.config.update(f"jax_{name}", value)  # type: ignore[no-untyped-call]
