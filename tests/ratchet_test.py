"""Sizes of the tree are no greater than tests/ratchet.json has them."""

import pytest

from tests import ratchet

SIZES = ratchet.measure()


@pytest.mark.smoke
def test_every_size_is_recorded():
  assert set(ratchet.recorded()) == {*SIZES, *ratchet.BY_OTHERS}


@pytest.mark.smoke
@pytest.mark.parametrize("name", SIZES)
def test_no_size_grows(name):
  assert SIZES[name] <= ratchet.recorded()[name], (
    f"{name} has grown: take something out, or raise it in {ratchet.FILE.name} "
    "and say why in the commit"
  )
