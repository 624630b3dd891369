"""One answer to a call, while it is drawn and when it is whole."""

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncGenerator, Sequence

import numpy as np

from agentrl_jax.rollout.api import (
  Answer,
  Generator,
  SamplingSpec,
  answer_chunks,
)
from agentrl_jax.rollout.openai.detokenizer import Detokenizer


@dataclasses.dataclass(frozen=True, eq=False)
class Delta:
  """What has been added to an answer."""

  piece: Answer
  text: str  # that can be let out; less or more than the piece's tokens
  is_last: bool = False


class Choice:
  """One choice of a call. `answer` and `finish_reason` are there at its end.

  Tokens after the one that completes a stop string are none of the answer's:
  the slot is freed, and nobody hears of them.
  """

  def __init__(
    self, index: int, prompt: np.ndarray, spec: SamplingSpec, text: Detokenizer
  ):
    self.index, self.prompt, self.spec = index, prompt, spec
    self._text = text
    self._pieces: list[Answer] = []

  async def deltas(
    self, generator: Generator, *, whole: bool
  ) -> AsyncGenerator[Delta, None]:
    """Draws the answer, in one delta if it is wanted `whole`."""
    async with contextlib.aclosing(self._drawn(generator, whole)) as pieces:
      async for piece in pieces:
        piece = self._add(piece)
        if self._is_over(piece):
          self._text.end()
          yield Delta(piece, self._text.release(), is_last=True)
          return
        if not whole:
          yield Delta(piece, self._text.release())

  async def _drawn(
    self, generator: Generator, whole: bool
  ) -> AsyncGenerator[Answer, None]:
    if whole and not self._text.stops:
      yield await generator.generate(self.prompt, self.spec)
      return
    stream = answer_chunks(generator, self.prompt, self.spec)
    async with contextlib.aclosing(stream) as pieces:
      async for piece in pieces:
        yield piece

  @property
  def answer(self) -> Answer:
    """All that was sampled."""
    return Answer.joined(self._pieces)

  @property
  def num_sampled(self) -> int:
    """Tokens so far."""
    return sum(len(piece.sampled) for piece in self._pieces)

  @property
  def num_reused(self) -> int:
    """Prompt tokens whose keys and values were at hand."""
    return self._pieces[-1].num_reused if self._pieces else 0

  @property
  def text(self) -> str:
    """The answer's text, up to where a stop string or token ended it."""
    return self._text.whole

  @property
  def finish_reason(self) -> str:
    """`stop` if a stop string or token ended it, else `length`."""
    stopped = self.stop_reason is not None or self.ended_by is not None
    return "stop" if stopped else "length"

  @property
  def stop_reason(self) -> str | None:
    """The stop string that ended it, if one did."""
    return self._text.stopped_by

  @property
  def ended_by(self) -> int | None:
    """The stop token that ended it, if one did."""
    last = int(self._pieces[-1].sampled[-1]) if self._pieces else -1
    return last if last in self.spec.stop_tokens else None

  def _add(self, piece: Answer) -> Answer:
    ids = piece.sampled.tolist()
    body = ids[:-1] if ids[-1] in self.spec.stop_tokens else ids
    taken = self._text.add(body)
    if self._text.stopped_by is not None:
      piece = piece.span(0, taken)
    self._pieces.append(piece)
    return piece

  def _is_over(self, piece: Answer) -> bool:
    return (
      self._text.stopped_by is not None
      or int(piece.sampled[-1]) in self.spec.stop_tokens
      or self.num_sampled >= self.spec.max_tokens
    )


async def all_deltas(
  draws: Sequence[Choice], generator: Generator, *, whole: bool
) -> AsyncGenerator[tuple[Choice, Delta], None]:
  """The deltas of several answers, as they come; closing it gives all up."""
  queue: asyncio.Queue[tuple[Choice, Delta] | None] = asyncio.Queue()

  async def follow(draw: Choice) -> None:
    try:
      stream = draw.deltas(generator, whole=whole)
      async with contextlib.aclosing(stream) as deltas:
        async for delta in deltas:
          queue.put_nowait((draw, delta))
    finally:
      queue.put_nowait(None)

  tasks = [asyncio.create_task(follow(draw)) for draw in draws]
  left = len(tasks)
  try:
    while left:
      if (found := await queue.get()) is not None:
        yield found
        continue
      left -= 1
      for task in tasks:
        if task.done() and not task.cancelled():
          task.result()  # the first that failed fails the call
  finally:
    for task in tasks:
      task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
