"""Detokenizes an answer while it grows, and cuts it at a stop string.

A token need not be whole characters, and a stop string need not be whole
tokens. Text is released once no later token can change it: not within a
character, nor from where a stop string may have begun.
"""

from collections.abc import Callable, Sequence

_BROKEN = "\ufffd"  # stands for bytes that are no character yet
_MAX_CHARACTER = 4  # bytes of a character, and so tokens


class Detokenizer:
  """The text of tokens that come one at a time."""

  def __init__(
    self, decode: Callable[[Sequence[int]], str], stops: Sequence[str] = ()
  ):
    self._decode = decode
    self.stops = self._open_stops = tuple(stops)
    self._ids: list[int] = []
    # Tokens before `_end` are text already; those from `_begin` on are decoded
    # again, since the text of a token can depend on the one before it.
    self._begin = self._end = 0
    # Number of tokens at the last broken decoding, and its text.
    self._broken_end, self._broken_text = 0, ""
    self.text = ""  # up to the stop string, text not yet released included
    self._num_released = 0  # characters
    self.stopped_by: str | None = None

  def add(self, ids: Sequence[int]) -> int:
    """Adds tokens up to the one that completes a stop string.

    Returns the number of tokens added.
    """
    if not self._open_stops:
      self._add(ids)
      return len(ids)
    for number, id in enumerate(ids, start=1):
      self._add([id])
      if self.stopped_by is not None:
        return number
    return len(ids)

  def end(self) -> None:
    """Adds the bytes that never became a character; no more tokens come."""
    if self.stopped_by is None and self._end < len(self._ids):
      self._grow(self._decode(self._ids[self._begin :]))
    self._open_stops = ()

  def release(self) -> str:
    """Returns the final text that was not returned before."""
    end = len(self.text) - self._num_held()
    text = self.text[self._num_released : end]
    self._num_released = max(end, self._num_released)
    return text

  def _add(self, ids: Sequence[int]) -> None:
    self._ids += ids
    text = self._decode(self._ids[self._begin :])
    if not text.endswith(_BROKEN):
      self._grow(text)
    elif len(self._ids) >= max(self._broken_end, self._end) + _MAX_CHARACTER:
      self._grow_to_broken(text)

  def _grow_to_broken(self, text: str) -> None:
    """Accepts bytes as broken that no later token can complete.

    Otherwise an answer of broken bytes would be decoded anew with every token.
    """
    if self._broken_end > self._end and text.startswith(self._broken_text):
      self._grow(self._broken_text, self._broken_end)
      text = self._decode(self._ids[self._begin :])
    self._broken_end, self._broken_text = len(self._ids), text

  def _grow(self, text: str, end: int | None = None) -> None:
    known = self._decode(self._ids[self._begin : self._end])
    num_before = len(self.text)
    self.text += text[len(known) :]
    self._begin, self._end = self._end, end or len(self._ids)
    self._cut(num_before)

  def _cut(self, num_before: int) -> None:
    """Cuts the text at its first stop string."""
    matches = [
      (begin, stop)
      for stop in self._open_stops
      if (begin := self.text.find(stop, max(0, num_before - len(stop) + 1)))
      >= 0
    ]
    if matches:
      begin, self.stopped_by = min(matches)
      self.text, self._open_stops = self.text[:begin], ()

  def _num_held(self) -> int:
    """Counts the characters at the end with which a stop string may begin."""
    return max(
      (
        size
        for stop in self._open_stops
        for size in range(1, len(stop))
        if self.text.endswith(stop[:size])
      ),
      default=0,
    )
