"""Messages to token ids and back: the template and the tokenizer together.

Tokenising happens once per piece of text, when it enters the conversation. What
the policy sampled is never tokenised at all.
"""

from collections.abc import Sequence

import numpy as np
from tokenizers import Tokenizer

from agentrl_jax.data import template
from agentrl_jax.data.messages import Message, Tool


class ChatCodec:
  """Turns conversations into what a policy reads, and answers into messages."""

  def __init__(self, tokenizer: Tokenizer):
    self._tokenizer = tokenizer
    ids = {
      token: id
      for token in template.SPECIAL_TOKENS
      if (id := tokenizer.token_to_id(token)) is not None
    }
    missing = [t for t in template.SPECIAL_TOKENS if t not in ids]
    if missing:
      raise ValueError(
        f"the tokenizer lacks {missing}, which the chat template needs; "
        "train it with data.tokenizer.train_tokenizer"
      )
    self.stop_token: int = ids[template.END]

  @property
  def vocab_size(self) -> int:
    """How many token ids there are."""
    return self._tokenizer.get_vocab_size()

  def start(
    self, messages: Sequence[Message], tools: Sequence[Tool]
  ) -> np.ndarray:
    """Ids of a conversation's opening, up to where the policy writes."""
    return self.encode(template.render_start(messages, tools))

  def extend(
    self, messages: Sequence[Message], *, closed: bool = True
  ) -> np.ndarray:
    """Ids to append after an answer; see `template.render_next`."""
    return self.encode(template.render_next(messages, closed=closed))

  def write(self, message: Message) -> np.ndarray:
    """Ids of an assistant's message, its stop token last."""
    return self.encode(template.render_answer(message))

  def read(self, sampled: Sequence[int] | np.ndarray) -> Message:
    """The assistant's message that sampled ids stand for."""
    return template.parse_answer(self.decode(sampled))

  def encode(self, text: str) -> np.ndarray:
    """Ids of a piece of text, int32."""
    return np.asarray(self._tokenizer.encode(text).ids, np.int32)

  def decode(self, ids: Sequence[int] | np.ndarray) -> str:
    """Text of ids, markers included."""
    return str(
      self._tokenizer.decode([int(i) for i in ids], skip_special_tokens=False)
    )
