"""Mistakes are drawn as often as they were asked for, and checked first."""

import json

from absl.testing import parameterized

from agentrl_jax.data.records import Message
from agentrl_jax.env.mistakes import BROKEN_JSON, ErringExpert
from agentrl_jax.errors import ConfigError


class Sayer(ErringExpert):
  """Calls `say`, with another word by mistake."""

  def __init__(self, **mistakes):
    super().__init__(
      seed=3, mistakes=mistakes, known=("other", BROKEN_JSON), where="Sayer"
    )

  def answer(self, messages):
    del messages
    word = "no" if self.draws("other") else "yes"
    return self.erring_call("say", {"word": word})


def said(expert, number=1000):
  answers = [expert.answer([Message("user", "?")]) for _ in range(number)]
  return [answer.tool_calls[0].arguments for answer in answers]


class ErringExpertTest(parameterized.TestCase):
  def test_without_rates_it_makes_none(self):
    self.assertEqual(set(said(Sayer())), {'{"word": "yes"}'})

  @parameterized.parameters(0.0, 0.3, 1.0)
  def test_mistakes_come_at_their_rate(self, rate):
    found = said(Sayer(other=rate))
    share = sum("no" in text for text in found) / len(found)
    self.assertAlmostEqual(share, rate, delta=0.05)

  def test_broken_json_does_not_parse(self):
    for text in said(Sayer(broken_json=1.0), 3):
      with self.assertRaises(json.JSONDecodeError):
        json.loads(text)

  def test_the_same_seed_makes_the_same(self):
    rates = {"other": 0.5, "broken_json": 0.5}
    self.assertEqual(said(Sayer(**rates)), said(Sayer(**rates)))

  @parameterized.parameters(
    ({"others": 0.1}, "no mistake is called others"),
    ({"other": 1.5}, "is no probability"),
  )
  def test_refuses(self, mistakes, message):
    with self.assertRaisesRegex(ConfigError, message):
      Sayer(**mistakes)
