"""The text of an answer while it grows, and where a stop string cuts it.

A token need not be whole characters, and a stop string need not be whole
tokens. Text is let out once nothing that follows can change it: not in the
midst of a character, nor where a stop string may have begun.
"""

from collections.abc import Callable, Sequence

_BROKEN = "\ufffd"  # stands for bytes that are no character yet
_LONGEST = 4  # bytes of a character, and so tokens


class Detokenizer:
  """Text of tokens that come one at a time."""

  def __init__(
    self, decode: Callable[[Sequence[int]], str], stops: Sequence[str] = ()
  ):
    self._decode, self._stops = decode, tuple(stops)
    self.stops = self._stops
    self._ids: list[int] = []
    # Tokens up to `_read` are text already; those from `_begin` on are decoded
    # with it, since what a token reads like can depend on the one before it.
    self._begin = self._read = 0
    self._mark, self._marked = 0, ""  # tokens, and what those unread were like
    self._text = ""  # up to the stop string
    self._num_out = 0  # characters that have been let out
    self.stopped_by: str | None = None

  @property
  def whole(self) -> str:
    """All text so far, that which is held back included."""
    return self._text

  def add(self, ids: Sequence[int]) -> int:
    """Takes tokens in, up to the one that completes a stop string; how many."""
    if not self._stops:
      self._take(ids)
      return len(ids)
    for number, id in enumerate(ids, start=1):
      self._take([id])
      if self.stopped_by is not None:
        return number
    return len(ids)

  def end(self) -> None:
    """No more tokens come: bytes that are no character stay broken."""
    if self.stopped_by is None and self._read < len(self._ids):
      self._grow(self._decode(self._ids[self._begin :]))
    self._stops = ()

  def release(self) -> str:
    """What can be let out and has not been."""
    end = len(self._text) - self._held()
    out = self._text[self._num_out : end]
    self._num_out = max(end, self._num_out)
    return out

  def _take(self, ids: Sequence[int]) -> None:
    self._ids += ids
    text = self._decode(self._ids[self._begin :])
    if not text.endswith(_BROKEN):
      self._grow(text)
    elif len(self._ids) >= max(self._mark, self._read) + _LONGEST:
      self._grow_to_mark(text)

  def _grow_to_mark(self, text: str) -> None:
    """What is broken so many tokens later is no character, and never will be.

    Or an answer of broken bytes would be decoded anew with every token.
    """
    if self._mark > self._read and text.startswith(self._marked):
      self._grow(self._marked, self._mark)
      text = self._decode(self._ids[self._begin :])
    self._mark, self._marked = len(self._ids), text

  def _grow(self, text: str, end: int | None = None) -> None:
    known = self._decode(self._ids[self._begin : self._read])
    before = len(self._text)
    self._text += text[len(known) :]
    self._begin, self._read = self._read, end or len(self._ids)
    self._cut(before)

  def _cut(self, before: int) -> None:
    """Cuts the text at the first stop string that it has now."""
    found = [
      (at, stop)
      for stop in self._stops
      if (at := self._text.find(stop, max(0, before - len(stop) + 1))) >= 0
    ]
    if found:
      at, self.stopped_by = min(found)
      self._text, self._stops = self._text[:at], ()

  def _held(self) -> int:
    """Characters at the end with which a stop string may begin."""
    return max(
      (
        size
        for stop in self._stops
        for size in range(1, len(stop))
        if self._text.endswith(stop[:size])
      ),
      default=0,
    )
