"""Keeps compiled programs as files, for the next start of a process.

Learners and rollout servers of all runs of a workdir share a folder: a program
is found by its text and the compiler's options, whichever run compiled it. A
file that is damaged costs its compilation and a warning.
"""

import contextlib
import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache

_FOLDER = "jax_compilation_cache_dir"
_KEEP_ALL = {
  "jax_persistent_cache_min_compile_time_secs": 0.0,
  "jax_persistent_cache_min_entry_size_bytes": 0,
}


def enable_compile_cache(run: pathlib.Path, folder: str) -> None:
  """Keeps compiled programs in `folder`; "" keeps none.

  A relative folder is seen from the run's. JAX puts the folder's path into the
  keys of a GPU's programs, so it is written in one way.
  """
  if folder:
    _set({_FOLDER: str((run / folder).resolve())} | _KEEP_ALL)


def user_cache() -> pathlib.Path:
  """Returns the folder for programs of models that belong to no run."""
  home = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
  return pathlib.Path(home) / "agentrl_jax" / "compiled"


@contextlib.contextmanager
def compile_cache(run: pathlib.Path, folder: str) -> Iterator[None]:
  """Enables the cache within the context, and restores what was before."""
  before = {name: getattr(jax.config, name) for name in (_FOLDER, *_KEEP_ALL)}
  enable_compile_cache(run, folder)
  try:
    yield
  finally:
    _set(before)


def _set(settings: Mapping[str, Any]) -> None:
  for name, value in settings.items():
    jax.config.update(name, value)  # type: ignore[no-untyped-call]
  # JAX opens its cache once, and would stay with the folder it had then.
  compilation_cache.reset_cache()
