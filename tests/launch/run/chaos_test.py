"""Everything around a run is killed, and the run goes on; see `chaos`."""

import tempfile

import pytest
from absl.testing import absltest

from launch.config.settings import read_settings
from tests.launch.run import chaos, chaos_config


def test_both_environments_of_the_run_can_be_read():
  settings = read_settings(chaos_config.get_config())
  assert set(settings.environments) == {"arithmetic"}
  assert settings.rollouts.answer_timeout_s < settings.waits.answer_timeout_s


@pytest.mark.full
@pytest.mark.timeout(2400)
class ChaosTest(absltest.TestCase):
  def test_nothing_is_lost_left_or_done_twice(self):
    said = []
    with tempfile.TemporaryDirectory() as folder:
      faults, kills = chaos.survive(
        folder,
        minutes=4,
        period_s=20,
        share=0.1,
        away_s=20,
        seed=1,
        say=said.append,
      )
    self.assertEqual(faults, [], "\n".join(said))
    for kind, number in kills.items():
      self.assertGreater(number, 0, kind)
