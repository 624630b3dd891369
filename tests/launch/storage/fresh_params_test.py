"""Fresh params are those that the config asks for, on every mesh."""

import jax
import numpy as np
from absl.testing import parameterized

from agentrl_jax.model import sharding
from agentrl_jax.model.policy import Policy
from agentrl_jax.train.weights.copying import copying
from launch.config.settings import read_settings
from launch.storage.load_params import fresh_params
from tests.launch import tiny


class FreshParamsTest(parameterized.TestCase):
  @parameterized.parameters((0.0, True), (4.0, False), (4.0, True))
  def test_copy_gain_is_applied(self, gain, has_mesh):
    config = tiny.get_config()
    config.warm_start.copy_gain = gain
    settings = read_settings(config)
    policy = Policy(
      settings.model,
      settings.compute,
      sharding.make_mesh({}, jax.devices()[:1]) if has_mesh else None,
    )
    wanted = policy.init(jax.random.key(settings.seed))
    if gain:
      wanted = copying(wanted, gain)
    jax.tree.map(
      lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-7),
      fresh_params(settings, policy),
      wanted,
    )
