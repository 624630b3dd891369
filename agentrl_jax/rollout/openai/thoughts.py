"""Separates an answer's thoughts from its text, while it grows.

Conversations are recorded with their thoughts between `<think>` tags. Clients
get them as a field of their own, which some send back and others drop: a call
continues a conversation either way, unless it has changed a thought.
"""

import hashlib
from collections.abc import Iterator, Sequence

from agentrl_jax.data.chat.call_grammar import THINK, THINK_END
from agentrl_jax.data.records import Message


class ThoughtSplitter:
  """Splits text that comes in parts; `is_open`: it begins within a thought.

  Thoughts come before any text. Of what may be a part of a tag, nothing is
  given out before it is known whether it is one.
  """

  def __init__(self, *, is_open: bool = False):
    self._in_thought, self._in_text = is_open, False
    self._held = ""

  def add(self, text: str, *, is_last: bool) -> Iterator[tuple[bool, str]]:
    """Yields what is final: whether it is a thought, and its text."""
    self._held += text
    while self._held and not self._in_text:
      if self._in_thought:
        thought, end, rest = self._held.partition(THINK_END)
        kept = 0 if end or is_last else _begun(thought, THINK_END)
        if given := thought[: len(thought) - kept]:
          yield True, given
        self._held = rest if end else thought[len(thought) - kept :]
        self._in_thought = not end
        if not end:
          return
        continue
      begun = self._held.lstrip()
      if begun.startswith(THINK):
        self._held, self._in_thought = begun[len(THINK) :], True
      elif THINK.startswith(begun) and not is_last:
        return
      else:
        self._in_text = True
    if self._held:
      yield False, self._held
      self._held = ""


def with_thought(thought: str, text: str) -> str:
  """Returns the content of an answer that has a thought; "": none."""
  return f"{THINK}{thought}{THINK_END}{text}" if thought else text


def split(content: str) -> tuple[str, str]:
  """Returns the thoughts of a message without their tags, and its text."""
  parts = [*ThoughtSplitter().add(content, is_last=True)]
  thought, text = (
    "".join(part for is_thought, part in parts if is_thought is kind)
    for kind in (True, False)
  )
  return thought, text


def thought_keys(messages: Sequence[Message]) -> tuple[bytes, ...]:
  """Returns a key of the thoughts of each message; empty: it has none."""
  return tuple(
    _key(split(m.content)[0]) if m.role == "assistant" else b""
    for m in messages
  )


def agree(given: Sequence[bytes], recorded: Sequence[bytes]) -> bool:
  """True if no recorded thought was changed; it may have been dropped."""
  pairs = zip(given, recorded, strict=False)
  return all(key in (b"", other) for key, other in pairs)


def _key(thought: str) -> bytes:
  text = thought.strip()
  return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest() * bool(
    text
  )


def _begun(text: str, tag: str) -> int:
  """Returns how many characters at the end of a text may begin the tag."""
  return max(
    (size for size in range(1, len(tag)) if text.endswith(tag[:size])),
    default=0,
  )
