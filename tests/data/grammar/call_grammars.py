"""Random answers that a grammar allows, and whether it allows one."""

import numpy as np

from agentrl_jax.data.grammar.grammars import Grammars
from agentrl_jax.errors import GeneratorFault

# What brings a value to its end; a random walk would else write on and on.
CLOSING = (*'"}],', "<|end|>")


def bits_of(mask):
  """Membership of each token in a mask, bool [V] and some more."""
  return np.unpackbits(mask.view(np.uint8), bitorder="little", axis=-1) == 1


def allows(grammars: Grammars, grammar, ids) -> bool:
  """Checks an answer by the grammar, and by the masks of its tokens."""
  try:
    mask_AW = grammars.masks(grammar, ids)
  except GeneratorFault:
    return False
  return bool(bits_of(mask_AW)[np.arange(len(ids)), ids].all())


class Walker:
  """Answers by drawing tokens at random from those that a grammar allows."""

  def __init__(self, codec, grammars: Grammars):
    self._grammars, self._stops = grammars, set(codec.stop_tokens)
    texts = [codec.decode([id]) for id in range(codec.vocab_size)]
    self._closes = np.array([text.startswith(CLOSING) for text in texts])
    self._stop = np.isin(np.arange(codec.vocab_size), [*self._stops])

  def answer(self, rng, grammar, size=600):
    """The ids, the stop token last; None if it took more than `size`."""
    state, ids = self._grammars.begin(grammar), []
    while len(ids) < size:
      can = bits_of(state.allowed())[: len(self._closes)]
      ids.append(self._one(rng, can))
      state.take(ids[-1])
      if ids[-1] in self._stops:
        return ids
    return None

  def _one(self, rng, can):
    for likely, share in ((self._stop, 0.2), (self._closes, 0.4)):
      if (can & likely).any() and rng.random() < share:
        can = can & likely
    return int(rng.choice(np.flatnonzero(can)))
