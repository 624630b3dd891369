"""Every test of the losses runs with jax as strict as it gets."""

import jax
import pytest


@pytest.fixture(autouse=True)
def no_silent_rank_promotion():
  with jax.numpy_rank_promotion("raise"):
    yield
