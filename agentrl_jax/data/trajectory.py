"""Frozen records that travel from environments to the learner.

Token ids are kept as they were sampled, and no text is tokenised twice.
"""

import dataclasses
import enum
from collections.abc import Mapping

import numpy as np


class Status(enum.Enum):
  """State of an episode, in AgentRL's words.

  An episode that the policy ended is trained on. One that broke for another
  reason is retried, then masked out of its group, and never scored.
  """

  RUNNING = "running"
  COMPLETED = "completed"
  TASK_LIMIT_REACHED = "task limit reached"
  AGENT_VALIDATION_FAILED = "agent validation failed"
  AGENT_INVALID_ACTION = "agent invalid action"
  AGENT_CONTEXT_LIMIT = "agent context limit"
  TASK_ERROR = "task error"
  CANCELLED = "cancelled"
  UNKNOWN = "unknown"

  @property
  def is_policys_doing(self) -> bool:
    """True if an episode with this end may be trained on."""
    return self in _POLICYS_DOING


_POLICYS_DOING = frozenset(
  {
    Status.COMPLETED,
    Status.TASK_LIMIT_REACHED,
    Status.AGENT_VALIDATION_FAILED,
    Status.AGENT_INVALID_ACTION,
    Status.AGENT_CONTEXT_LIMIT,
  }
)


@dataclasses.dataclass(frozen=True)
class Task:
  """One problem: the environment's name, a split, and an index within it."""

  name: str
  split: str
  index: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class EpisodeSpec:
  """Identity of an episode, before it is played."""

  task: Task
  group_id: str
  attempt: int  # position within the group
  seed: int


@dataclasses.dataclass(frozen=True, eq=False)
class Turn:
  """One answer of the policy and the observation before it.

  Arrays over the sampled tokens have equal length. Log-probabilities are in
  nats. `behavior_logprob` is under the distribution that the token was drawn
  from (temperature and truncation applied); `raw_logprob` at temperature 1.
  `version` is the number of optimizer updates behind the weights that sampled
  the token, -1 for a token that no policy sampled (an expert's). `grammar` is
  the grammar that the answer had to follow, as `data.grammar.grammars` reads
  it: the distribution is then over the tokens that it allows. "" allows all.
  """

  observation: np.ndarray  # int32 [O], tokens appended since the last answer
  sampled: np.ndarray  # int32 [A]
  behavior_logprob: np.ndarray  # float32 [A]
  raw_logprob: np.ndarray  # float32 [A]
  version: np.ndarray  # int32 [A]
  policy_slot: int = 0  # of the weights that answered; 0 follows the learner
  reward: float = 0.0  # of this answer alone
  grammar: str = ""

  def __post_init__(self) -> None:
    sizes = {
      name: len(getattr(self, name))
      for name in ("sampled", "behavior_logprob", "raw_logprob", "version")
    }
    if len(set(sizes.values())) > 1:
      raise ValueError(f"one entry per sampled token is needed, found {sizes}")


@dataclasses.dataclass(frozen=True, eq=False)
class Trajectory:
  """Record of one episode, from the first observation to the last reward."""

  task: Task
  group_id: str
  attempt: int  # position within the group
  seed: int
  turns: tuple[Turn, ...]
  status: Status
  reward: float  # the environment's verdict, before any shaping
  metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)
  transcript: tuple[Mapping[str, object], ...] = ()  # OpenAI messages
  # That its policy slots were drawn with; () if they were not drawn.
  policy_slot_weights: tuple[float, ...] = ()

  @property
  def num_tokens(self) -> int:
    """Prompt, observations and answers together."""
    return sum(len(t.observation) + len(t.sampled) for t in self.turns)

  @property
  def num_sampled(self) -> int:
    """Tokens that are trained on."""
    return sum(len(t.sampled) for t in self.turns)

  @property
  def is_success(self) -> bool:
    """The environment's `success` metric; without one, whether reward is 1."""
    if "success" in self.metrics:
      return self.metrics["success"] > 0.5
    return self.reward == 1.0

  @property
  def fresh_versions(self) -> tuple[int, ...]:
    """The oldest version of each turn that policy slot 0 answered.

    Staleness counts policy slot 0 alone: other policy slots are old on purpose.
    """
    return tuple(
      int(turn.version.min())
      for turn in self.turns
      if turn.policy_slot == 0 and len(turn.version)
    )


@dataclasses.dataclass(frozen=True, eq=False)
class Group:
  """Trajectories of one task, whose advantages are relative to each other.

  Only trajectories that may be trained on are members; `num_masked` counts the
  episodes that were lost to faults, after their retries.
  """

  id: str
  task: Task
  trajectories: tuple[Trajectory, ...]
  num_masked: int = 0

  @property
  def oldest_version(self) -> int:
    """The oldest version in policy slot 0; in any slot if 0 never answered."""
    members = self.trajectories
    fresh = [v for t in members for v in t.fresh_versions]
    every = [
      int(turn.version.min())
      for t in members
      for turn in t.turns
      if len(turn.version)
    ]
    return min(fresh or every, default=-1)
