"""Sections of environments take any key, also those that replace others."""

import pytest
from ml_collections.config_dict import create

from agentrl_jax.errors import ConfigError
from configs import base
from launch.config.settings import read_environments

pytestmark = pytest.mark.smoke


@pytest.mark.parametrize("options", [{"max_rounds": 3}, create(max_rounds=3)])
def test_options_that_replace_others_take_further_keys(options):
  config = base.get_config()
  config.environments.dbbench.options = options
  config.environments.dbbench.options.num_rows = (2, 4)
  found = config.environments.dbbench.options.to_dict()
  assert found == {"max_rounds": 3, "num_rows": (2, 4)}


def test_a_section_that_no_environment_has_is_no_key():
  assert "has mistakes, options, place, target" in base.why_unknown(
    "--config.environments.dbbench.placee.worker", base.get_config()
  )


def test_a_wrong_place_is_named_by_its_key():
  config = base.get_config()
  config.environments.dbbench.place.containers = "two"
  key = "environments.dbbench.place.containers"
  with pytest.raises(ConfigError, match=f"^{key}='two'.*Set --config.{key},"):
    read_environments(config)
