"""Matches the text of a policy to one of the admissible commands.

AgentBench plays the command with the highest sentence-BLEU to the text. The
score is nltk's (uniform weights, n-grams up to 4, smoothing method 4), computed
in the same order and therefore equal to the last bit, ties included. It is many
times faster, because n-grams of the text are counted once, not per command.
"""

import collections
import functools
import math
from collections.abc import Mapping, Sequence

MIN_SCORE = 0.01  # text with no higher score is played as it is
_MAX_ORDER = 4
_SMOOTHING = 5  # K of method 4 (Chen and Cherry 2014)

_NGrams = Mapping[tuple[str, ...], int]


def match_action(text: str, commands: Sequence[str]) -> str:
  """Returns the command to play for the text of a policy."""
  action = text.strip().lower().split("\n")[0]
  if not commands or action in commands:
    return action
  words = action.split()
  if len(words) > _longest_matched(commands):
    return action
  ngrams = [_count(words, order) for order in range(1, _MAX_ORDER + 1)]
  scores = [_score(command, len(words), ngrams) for command in commands]
  best = scores.index(max(scores))  # the first of equals
  return commands[best] if scores[best] > MIN_SCORE else action


def _longest_matched(commands: Sequence[str]) -> int:
  """Returns a length above which text scores at most `MIN_SCORE`.

  A command of n words shares at most n n-grams of each order with the text, so
  its precisions, and with them their mean, are at most n over the number of
  the text's n-grams. Counting those of a longer text would hold up the others.
  """
  num_words = max(_reference(command)[0] for command in commands)
  return math.ceil(max(num_words, 1) / MIN_SCORE) + _MAX_ORDER


def _score(command: str, num_words: int, ngrams: Sequence[_NGrams]) -> float:
  """Sentence-BLEU of a text with `ngrams`, with `command` as reference."""
  reference_length, reference_ngrams = _reference(command)
  matches = [
    sum(min(n, counts[gram]) for gram, n in reference.items() if gram in counts)
    for counts, reference in zip(ngrams, reference_ngrams, strict=True)
  ]
  if matches[0] == 0:
    return 0.0
  brevity_penalty = (
    1.0
    if num_words > reference_length
    else math.exp(1 - reference_length / num_words)
  )
  log_precisions = []
  num_smoothed = 0
  for order, matched in enumerate(matches, 1):
    total = max(1, num_words - order + 1)
    if matched:
      log_precisions.append(0.25 * math.log(matched / total))
    elif num_words > 1:
      num_smoothed += 1
      smoothed = 1 / (2**num_smoothed * _SMOOTHING / math.log(num_words))
      log_precisions.append(0.25 * math.log(smoothed / total))
  return brevity_penalty * math.exp(math.fsum(log_precisions))


@functools.lru_cache(maxsize=1 << 12)
def _reference(command: str) -> tuple[int, Sequence[_NGrams]]:
  words = command.split()
  return len(words), [_count(words, n) for n in range(1, _MAX_ORDER + 1)]


def _count(words: Sequence[str], order: int) -> _NGrams:
  return collections.Counter(
    zip(*(words[k:] for k in range(order)), strict=False)
  )
