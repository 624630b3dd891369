"""Sizes of the tree are no greater than tests/ratchet.json has them."""

import functools

import pytest

from tests import ratchet

sizes = functools.cache(ratchet.measure)  # read files when a test runs


@pytest.mark.smoke
def test_every_size_is_recorded():
  assert set(ratchet.recorded()) == {*sizes(), *ratchet.BY_OTHERS}


@pytest.mark.smoke
@pytest.mark.parametrize(
  "name", sorted(ratchet.recorded().keys() - ratchet.BY_OTHERS)
)
def test_no_size_grows(name):
  assert sizes()[name] <= ratchet.recorded()[name], (
    f"{name} has grown: take something out, or raise it in {ratchet.FILE.name} "
    "and say why in the commit"
  )
