"""An environment that fails on request in each way."""

import asyncio
import contextlib

from agentrl_jax.data.records import Message, Status, Tool
from agentrl_jax.env.interface import Environment, Session, Step
from agentrl_jax.errors import ConfigError, EnvironmentFault

SAY = Tool("say", "Says it.", {"type": "object", "properties": {}})
SHOUT = Tool("shout", "Says it.", {"type": "object", "properties": {}})


# The reply to "end" as the protocol writes it.
END_JSON = {
  "messages": [],
  "status": "completed",
  "finish": True,
  "reward": 1.0,
  "metric": {"words": 2.0},
}


def says(words):
  """Writes an answer as the protocol does."""
  return [{"role": "assistant", "content": words}]


class Moody(Environment):
  """Index 0 plays; 1 breaks as it opens; 2 breaks as it is closed; 3 is over
  as it begins; 4 never begins."""

  name = "moody"

  def __init__(self):
    self.num_open = 0
    self.num_hanging = 0  # sessions that owe an answer and do not give it
    self.seeds = []
    self.release = asyncio.Event()  # ends whatever hangs in a step
    self.answers = []
    self.is_open = asyncio.Event()  # steps wait while it is not
    self.is_open.set()

  def indices(self, split):
    if split not in ("train", "test"):
      raise ConfigError(f"moody has no split {split!r}")
    return [0, 1, 2, 3, 4] if split == "test" else [7]

  @contextlib.asynccontextmanager
  async def open(self, task, *, seed):
    if task.index == 1:
      raise RuntimeError("the disk is full")
    self.num_open += 1
    self.seeds.append(seed)
    entered_in = asyncio.current_task()
    try:
      yield _Mood(self, task.index)
    finally:
      assert asyncio.current_task() is entered_in
      self.num_open -= 1
    if task.index == 2:
      raise OSError("device busy")


class _Mood(Session):
  tools = (SAY,)

  def __init__(self, moody, index):
    self._moody = moody
    self._index = index

  async def reset(self):
    if self._index == 4:
      await self._hang(asyncio.Event())
    over = Status.TASK_LIMIT_REACHED if self._index == 3 else Status.RUNNING
    return Step((Message("user", "Well?"),), status=over)

  async def step(self, answer):
    self._moody.answers.append(answer.content)
    await self._hang(self._moody.is_open)
    match answer.content:
      case "break":
        raise ZeroDivisionError("of mine")
      case "fault":
        raise EnvironmentFault("the container is gone")
      case "hang":
        await self._hang(self._moody.release)
      case "more":
        self.tools = (SAY, SHOUT)
      case "give up":
        return Step((), status=Status.CANCELLED)
      case "end":
        return Step((), 1.0, Status.COMPLETED, {"words": 2.0})
    return Step((Message("user", f"You say {answer.content}."),))

  async def _hang(self, event):
    self._moody.num_hanging += 1
    try:
      await event.wait()
    finally:
      self._moody.num_hanging -= 1
