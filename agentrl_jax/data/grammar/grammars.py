"""Compiles grammars to masks of allowed tokens, with llguidance.

A grammar is a text in llguidance's language: Lark with `%json` for schemas and
`<[id]>` for a token; `data.chat.call_grammar` writes those of tool calls.
Sampler and learner use the same functions, so both have the same distribution:
the policy's over the tokens that the grammar allows.

A marker of the chat template is never text to a grammar; its letters in
ordinary tokens are text (see `data.chat.marked_text`). Needs no jax.

Masks are bits, W = ceil(V / 32) words of 32 tokens each; of word w, bit b is
token 32 w + b.
"""

import collections
import json
import threading
from collections.abc import Iterable, Sequence

import llguidance
import numpy as np
from tokenizers import Tokenizer

from agentrl_jax.errors import ConfigError, GrammarFault

BITS = 32  # tokens to a word of a mask
_CACHE_SIZE = 256  # compiled grammars


class Grammars:
  """Compiles grammars over one tokenizer, and caches the last ones."""

  def __init__(
    self,
    tokenizer: Tokenizer,
    *,
    markers: Iterable[int],
    stop_tokens: Sequence[int],
    vocab_size: int,
  ):
    """`vocab_size` is the policy's, which may exceed the tokenizer's.

    `stop_tokens` are allowed where an answer may end.
    """
    if not stop_tokens:
      raise ConfigError(
        "a grammar ends an answer by a stop token, and the chat template has "
        "none: name one, as in the model's generation_config.json"
      )
    self.vocab_size, self.stop_tokens = vocab_size, tuple(stop_tokens)
    self._tokenizer = llguidance.LLTokenizer(
      _with_special(tokenizer, set(markers)),
      n_vocab=vocab_size,
      eos_token=list(stop_tokens),
    )
    self._matchers: collections.OrderedDict[str, llguidance.LLMatcher] = (
      collections.OrderedDict()
    )
    self._lock = threading.Lock()

  @property
  def num_mask_words(self) -> int:
    """W, the words of a mask."""
    return -(-self.vocab_size // BITS)

  def has(self, grammar: str) -> bool:
    """Returns whether the grammar is cached; this renews its place."""
    with self._lock:
      if grammar in self._matchers:
        self._matchers.move_to_end(grammar)
      return grammar in self._matchers

  def check(self, grammar: str) -> None:
    """Raises `ConfigError` for an unusable grammar, with the reason."""
    self._compiled(grammar)

  def begin(self, grammar: str) -> "GrammarState":
    """Returns the state of the grammar before an answer's first token."""
    return GrammarState(
      self._compiled(grammar).deep_copy(), self.num_mask_words
    )

  def masks(
    self, grammar: str, sampled: Sequence[int] | np.ndarray
  ) -> np.ndarray:
    """Returns the mask of each token of an answer, uint32 [A, W].

    Raises `GrammarFault` for a token that its mask does not allow.
    """
    state = self.begin(grammar)
    mask_AW = np.zeros((len(sampled), self.num_mask_words), np.uint32)
    for n, token in enumerate(map(int, sampled)):
      mask_AW[n] = state.allowed()
      state.take(token)
      # llguidance may take a token outside the mask: where a grammar forces a
      # text, the mask has one tokenization of it, and any is taken.
      if not mask_AW[n, token // BITS] >> token % BITS & 1:
        raise GrammarFault(
          f"token {token} continues its grammar, and is not in the mask there: "
          "let sampler and learner run the same version of llguidance"
        )
    return mask_AW

  def _compiled(self, grammar: str) -> llguidance.LLMatcher:
    with self._lock:
      matcher = self._matchers.get(grammar)
    if matcher is None:
      matcher = self._compile(grammar)  # without the lock, as it may take long
    with self._lock:
      self._matchers[grammar] = matcher
      self._matchers.move_to_end(grammar)
      while len(self._matchers) > _CACHE_SIZE:
        self._matchers.popitem(last=False)
    return matcher

  def _compile(self, grammar: str) -> llguidance.LLMatcher:
    matcher = llguidance.LLMatcher(self._tokenizer, grammar, log_level=0)
    if matcher.is_error():
      raise ConfigError(
        f"no grammar can be made of {_shortened(grammar)}: "
        f"{matcher.get_error()}. See llguidance's docs/syntax.md, and "
        "docs/json_schema.md for what of a schema it knows"
      )
    return matcher


class GrammarState:
  """State of a grammar within one answer."""

  def __init__(self, matcher: llguidance.LLMatcher, num_mask_words: int):
    self._matcher, self._num_mask_words = matcher, num_mask_words

  def allowed(self) -> np.ndarray:
    """Returns the mask of the next token, uint32 [W], which is never empty."""
    mask_W = np.frombuffer(self._matcher.compute_bitmask(), np.uint32)
    if self._matcher.is_error() or not mask_W.any():
      raise GrammarFault(
        f"the grammar has come to where no token goes on: {self._reason()}"
      )
    return mask_W[: self._num_mask_words]

  def take(self, token: int) -> None:
    """Advances by a token. Raises `GrammarFault` if it is not allowed."""
    if not self._matcher.consume_token(token):
      raise GrammarFault(
        f"token {token} is not allowed by its grammar there: {self._reason()}"
      )

  def _reason(self) -> str:
    """Returns llguidance's reason, without the state of its parser."""
    reason = self._matcher.get_error() or self._matcher.stop_reason()
    return reason.partition("\n")[0][:300]


def _with_special(tokenizer: Tokenizer, markers: set[int]) -> str:
  """Returns the tokenizer's JSON with all markers special: never text."""
  body = json.loads(tokenizer.to_str())
  for token in body["added_tokens"]:
    token["special"] = token["special"] or token["id"] in markers
  body["padding"] = body["truncation"] = None
  return json.dumps(body)


def _shortened(grammar: str, size: int = 500) -> str:
  return repr(grammar if len(grammar) <= size else f"{grammar[:size]}...")
