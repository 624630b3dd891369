"""Runs the losses' tests without implicit rank promotion.

Nor does JAX shorten tracebacks, which takes it longer than a refusal does.
"""

import jax
import pytest


@pytest.fixture(autouse=True)
def no_silent_rank_promotion():
  with jax.numpy_rank_promotion("raise"):
    yield


@pytest.fixture(autouse=True)
def whole_tracebacks():
  filtering = jax.config.jax_traceback_filtering
  jax.config.update("jax_traceback_filtering", "off")
  yield
  jax.config.update("jax_traceback_filtering", filtering)
