"""Which of the available actions the policy meant.

AgentBench takes the action with the highest sentence-BLEU to what was written.
The score is nltk's (uniform weights up to four words, smoothing method 4),
computed in the same order and therefore with the same ties, but many times
faster: what was written is counted once, not once per action.
"""

import collections
import functools
import math
from collections.abc import Mapping, Sequence

LEAST_SCORE = 0.01  # what scores no more is played as it was written
_MAX_ORDER = 4
_SMOOTHING = 5  # K of method 4 (Chen and Cherry 2014)

_NGrams = Mapping[tuple[str, ...], int]


def snap(written: str, commands: Sequence[str]) -> str:
  """The command that is played for what the policy wrote."""
  action = written.strip().lower().split("\n")[0]
  if not commands or action in commands:
    return action
  words = action.split()
  ngrams = [_count(words, order) for order in range(1, _MAX_ORDER + 1)]
  scores = [_score(command, len(words), ngrams) for command in commands]
  best = scores.index(max(scores))  # the first of equals
  return commands[best] if scores[best] > LEAST_SCORE else action


def _score(command: str, num_words: int, ngrams: Sequence[_NGrams]) -> float:
  """Sentence-BLEU of what was written, with `command` for reference."""
  length, counted = _reference(command)
  matches = [
    sum(min(n, written[gram]) for gram, n in meant.items() if gram in written)
    for written, meant in zip(ngrams, counted, strict=True)
  ]
  if matches[0] == 0:
    return 0.0
  brevity = 1.0 if num_words > length else math.exp(1 - length / num_words)
  logs = []
  num_smoothed = 0
  for order, matched in enumerate(matches, 1):
    total = max(1, num_words - order + 1)
    if matched:
      logs.append(0.25 * math.log(matched / total))
    elif num_words > 1:
      num_smoothed += 1
      share = 1 / (2**num_smoothed * _SMOOTHING / math.log(num_words))
      logs.append(0.25 * math.log(share / total))
  return brevity * math.exp(math.fsum(logs))


@functools.lru_cache(maxsize=1 << 12)
def _reference(command: str) -> tuple[int, Sequence[_NGrams]]:
  words = command.split()
  return len(words), [_count(words, n) for n in range(1, _MAX_ORDER + 1)]


def _count(words: Sequence[str], order: int) -> _NGrams:
  return collections.Counter(
    zip(*(words[k:] for k in range(order)), strict=False)
  )
