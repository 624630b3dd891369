"""What an environment is: a space of tasks, and a session per attempt.

  async with environment.open(task, seed=0) as session:
    step = await session.reset()
    while step.status is Status.RUNNING:
      step = await session.step(answer_to(step.messages, session.tools))

Implementations live in `environments/` and import `env` and `data` alone. Prove
yours with `env.contract.SessionContract`; it needs three lines.
"""

import abc
import contextlib
import dataclasses
from collections.abc import Collection, Mapping, Sequence

from agentrl_jax.data.messages import Message, Tool
from agentrl_jax.data.trajectory import Status, Task
from agentrl_jax.env.scripted import GENERIC, ScriptedPolicies


@dataclasses.dataclass(frozen=True)
class Step:
  """What the environment says back.

  `reward` is the verdict so far: the last step's reward is the episode's, as in
  AgentRL's protocol. `metrics` travel with it and are averaged per task.
  """

  messages: tuple[Message, ...]
  reward: float = 0.0
  status: Status = Status.RUNNING
  metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)


class Session(abc.ABC):
  """One attempt at one task. Steps come one at a time, never concurrently."""

  tools: tuple[Tool, ...]

  @abc.abstractmethod
  async def reset(self) -> Step:
    """Begins the attempt. Called once, first."""

  @abc.abstractmethod
  async def step(self, answer: Message) -> Step:
    """Plays the policy's answer.

    A malformed answer is the policy's mistake, not an error: say so in the
    returned messages. Raise `EnvironmentFault` only when the environment
    itself is broken.
    """


class Expert(abc.ABC):
  """A scripted player of one attempt, which knows the gold solution."""

  @abc.abstractmethod
  def answer(self, messages: Sequence[Message]) -> Message:
    """The next answer, given what the environment has just said."""


class Environment(abc.ABC):
  """A space of tasks and of sessions to attempt them in."""

  name: str
  # Whether it keeps tasks or connections between sessions, so that all of them,
  # and `close`, must be played in one and the same event loop.
  needs_one_loop: bool = False
  # The names of the mistakes that its expert can be told to make.
  mistakes: Collection[str] = ()

  @abc.abstractmethod
  def indices(self, split: str) -> Sequence[int]:
    """The indices of `split`, in an order that never changes.

    A generator returns a `range` (it may be as long as it likes): content is a
    pure function of (split, index).
    """

  @abc.abstractmethod
  def open(
    self, task: Task, *, seed: int
  ) -> contextlib.AbstractAsyncContextManager[Session]:
    """A fresh session; leaving the context frees it, whatever happened.

    Leaving may be cancelled while it waits: free what must not be lost before
    the first `await`, or in a `finally` around it.
    """

  async def close(self) -> None:  # noqa: B027 - most have nothing to free
    """Frees what outlives sessions, such as a server; called once, last."""

  def expert(
    self, task: Task, *, seed: int, mistakes: Mapping[str, float]
  ) -> Expert:
    """A scripted player of one attempt at the task.

    Args:
      task: what is attempted.
      seed: decides all that the player leaves to chance: two experts with the
        same task, seed and mistakes give the same answers.
      mistakes: the probability of each, by its name in `self.mistakes`; none
        is the error-free expert.

    Raises `ConfigError` for a mistake that is not among `self.mistakes`, and
    `NotImplementedError` where there is no expert.
    """
    raise NotImplementedError(f"{self.name} has no expert")

  def scripted_policies(self) -> ScriptedPolicies:
    """Policies of a few lines, by name: the success that costs no thought.

    An environment adds the short cuts that its own tasks invite.
    """
    return GENERIC
