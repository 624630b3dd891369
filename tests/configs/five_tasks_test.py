"""The config of five tasks: its tokens are the rooms', its arms are tasks."""

from absl.testing import parameterized

from configs import five_tasks
from configs.ablations import one_policy, one_policy_for_two
from environments.alfworld.generation.catalogue import FITS, ROOM_KINDS
from environments.knowledgegraph.generation.themes import THEMES
from environments.knowledgegraph.generation.world import NAME_PATTERNS
from launch.config.settings import read_settings


class FiveTasksTest(parameterized.TestCase):
  def test_tokens_are_of_the_rooms(self):
    furniture = {
      name for kind in ROOM_KINDS.values() for name in kind.furniture
    }
    self.assertSameElements(five_tasks.FURNITURE.split(), furniture)
    self.assertSameElements(five_tasks.THINGS.split(), FITS)

  def test_tokens_are_of_the_graphs(self):
    of_two = [p for p in NAME_PATTERNS.values() if p[1] == " "]
    for words, place in (
      (five_tasks.FIRST_WORDS, 0),
      (five_tasks.SECOND_WORDS, 2),
    ):
      names = [word for pattern in of_two for word in pattern[place]]
      self.assertSameElements(words.split(), names)
    relations = {r.name for theme in THEMES for r in theme.relations}
    self.assertSameElements(five_tasks.RELATIONS, relations)
    types = {type_.id for theme in THEMES for type_ in theme.types}
    self.assertContainsSubset(types, five_tasks.WHOLE_TOKENS)

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
    num_trained = sum(not s.held_out for s in settings.environments.values())
    self.assertEqual(settings.admission.groups_per_step, 8 * num_trained)
    self.assertEqual(config.warm_start.num_demonstrations, 4_000 * number)

  @parameterized.parameters("dbbench", "webshop")
  def test_without_one_of_two_an_update_has_half_of_the_groups(self, name):
    config = one_policy_for_two.get_config(f"rl_without_{name}")
    both = read_settings(one_policy_for_two.get_config())
    settings = read_settings(config)
    trained = [k for k, s in settings.environments.items() if not s.held_out]
    self.assertEqual(trained, list({*both.environments} - {name}))
    self.assertEqual(
      2 * settings.admission.groups_per_step, both.admission.groups_per_step
    )
