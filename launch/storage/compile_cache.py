"""Keeps compiled programs as files, for the next start of a process.

Learners and rollout servers of one run share a folder; each file is written
completely or not at all.
"""

import pathlib

import jax


def enable_compile_cache(run: pathlib.Path, folder: str) -> None:
  """Keeps compiled programs in `folder`; "" keeps none.

  A relative folder is within the run's.
  """
  if not folder:
    return
  for name, value in {
    "compilation_cache_dir": str(run.resolve() / folder),
    "persistent_cache_min_compile_time_secs": 0.0,
    "persistent_cache_min_entry_size_bytes": 0,
  }.items():
    jax.config.update(f"jax_{name}", value)  # type: ignore[no-untyped-call]
