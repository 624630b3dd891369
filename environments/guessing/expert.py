"""Scripted expert of guessing, with or without mistakes."""

from collections.abc import Mapping, Sequence

from agentrl_jax.data.records import Message
from agentrl_jax.env.mistakes import BROKEN_JSON, ErringExpert
from environments.guessing.game import (
  ATTRIBUTES,
  NO,
  YES,
  GuessingGame,
  Question,
  best_question,
)

MISTAKES = (
  "no_call",  # writes the question as text and calls no tool
  BROKEN_JSON,
  "early_guess",  # guesses one of several things that are still possible
  "excluded_guess",  # guesses a thing that the answers exclude, if there is one
  "repeated_question",  # asks once more what it asked last
  "wrong_attribute",  # asks for a value that the attribute does not have
)


class Questioner(ErringExpert):
  """Asks what halves the list, and guesses the only thing that is left.

  Never looks at the secret. In the last turn it guesses the first thing that is
  possible.
  """

  def __init__(
    self,
    game: GuessingGame,
    *,
    max_turns: int,
    seed: int,
    mistakes: Mapping[str, float],
  ):
    super().__init__(
      seed=seed, mistakes=mistakes, known=MISTAKES, where="Guessing's expert"
    )
    self._game = game
    self._turns_left = max_turns
    self._possible = list(range(len(game.things)))
    self._asked: Question | None = None

  def answer(self, messages: Sequence[Message]) -> Message:
    """Returns the next call for the environment's last messages."""
    self._read(messages[-1])
    self._turns_left -= 1
    is_found = len(self._possible) == 1 or not self._turns_left
    question = best_question(self._game, self._possible)
    if self.draws("no_call"):
      return Message("assistant", f"Is its {question[0]} {question[1]}?")
    if self.draws("excluded_guess") and (thing := self._excluded()) is not None:
      return self._guess(thing)
    if is_found:
      return self._guess(self._possible[0])
    if self.draws("early_guess"):
      return self._guess(self.rng.choice(self._possible))
    if self._asked is not None and self.draws("repeated_question"):
      return self._ask(self._asked)
    if self.draws("wrong_attribute"):
      return self._ask((_other(self._game.names, question[0]), question[1]))
    return self._ask(question)

  def _read(self, last: Message) -> None:
    """Keeps the things that fit the answer; an error excludes nothing."""
    is_answer = last.role == "tool" and last.content in (YES, NO)
    if self._asked is not None and is_answer:
      fits = self._game.fitting(self._asked, last.content == YES)
      self._possible = [thing for thing in self._possible if thing in fits]

  def _excluded(self) -> int | None:
    gone = set(range(len(self._game.things))) - set(self._possible)
    return self.rng.choice(sorted(gone)) if gone else None

  def _ask(self, question: Question) -> Message:
    if question[1] in ATTRIBUTES[question[0]]:
      self._asked = question
    return self.erring_call(
      "ask", {"attribute": question[0], "value": question[1]}
    )

  def _guess(self, thing: int) -> Message:
    return self.erring_call("guess", {"number": thing + 1})


def _other(names: Sequence[str], name: str) -> str:
  return names[names.index(name) - 1]
