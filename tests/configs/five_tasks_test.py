"""The config of five tasks: its tokens are the rooms', its arms are tasks."""

from absl.testing import absltest, parameterized

from configs import five_tasks
from configs.ablations import one_policy
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

  @parameterized.parameters(*one_policy.ARMS)
  def test_every_task_has_as_many_groups_and_demonstrations(self, arm):
    config = one_policy.get_config(arm)
    settings = read_settings(config)
    number = len(settings.environments)
    self.assertEqual(settings.admission.groups_per_step, 8 * number)
    self.assertEqual(config.warm_start.num_demonstrations, 4_000 * number)


if __name__ == "__main__":
  absltest.main()
