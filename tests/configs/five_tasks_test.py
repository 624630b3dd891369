"""The config of five tasks: its tokens are the rooms', its arms are tasks."""

from absl.testing import absltest, parameterized

from agentrl_jax.errors import ConfigError
from configs import environments, five_tasks
from environments.alfworld.generation.catalogue import FITS, ROOM_KINDS
from launch.config.settings import read_settings


class FiveTasksTest(parameterized.TestCase):
  def test_tokens_are_of_the_rooms(self):
    furniture = {
      name for kind in ROOM_KINDS.values() for name in kind.furniture
    }
    self.assertSameElements(five_tasks.FURNITURE.split(), furniture)
    self.assertSameElements(five_tasks.THINGS.split(), FITS)

  def test_tokenizer_has_room_to_learn(self):
    tokenizer = five_tasks.get_config().tokenizer
    self.assertGreater(
      tokenizer.vocab_size - len(tokenizer.whole_tokens) - 256, 1500
    )

  @parameterized.parameters("", *environments.NAMES)
  def test_each_can_be_trained(self, only):
    settings = read_settings(five_tasks.get_config(only))
    self.assertSameElements(
      settings.environments, [only] if only else environments.NAMES
    )
    self.assertEqual(
      settings.admission.groups_per_step,
      five_tasks.GROUPS_PER_TASK * len(settings.environments),
    )

  def test_a_sixth_is_refused(self):
    with self.assertRaisesRegex(ConfigError, "'chess' .* not one of alfworld"):
      five_tasks.get_config("chess")


if __name__ == "__main__":
  absltest.main()
