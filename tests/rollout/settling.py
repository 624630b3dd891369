"""Cases that wait for either driver, and see that nothing is left in it."""

from absl.testing import parameterized

from agentrl_jax.rollout.drivers.local import LocalDriver
from tests.rollout.drivers.contract import SHORT, WAIT_S


class SettlingCase(parameterized.TestCase):
  def settle(self, driver, futures):
    if isinstance(driver, LocalDriver):
      driver.run_until_idle()
    return [future.result(WAIT_S) for future in futures]

  def check_empty(self, driver):
    """All that is left of cancelled requests leaves with the next step."""
    self.settle(driver, [driver.submit([3], SHORT)])
    stats = driver.engine.stats()
    self.assertEqual((stats.num_active, stats.num_pending), ((0, 0), (0, 0)))
    self.assertEqual((driver.num_inside, driver.num_waiting), ((0, 0), (0, 0)))
    driver.engine.check_books()
