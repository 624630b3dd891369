"""Sections of environments take any key, also those that replace others."""

import pytest
from ml_collections.config_dict import create

from configs import base

pytestmark = pytest.mark.smoke


@pytest.mark.parametrize("options", [{"max_rounds": 3}, create(max_rounds=3)])
def test_options_that_replace_others_take_further_keys(options):
  config = base.get_config()
  config.environments.dbbench.options = options
  config.environments.dbbench.options.num_rows = (2, 4)
  found = config.environments.dbbench.options.to_dict()
  assert found == {"max_rounds": 3, "num_rows": (2, 4)}
