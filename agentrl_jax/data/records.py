"""The records that travel from environments to the learner, and their writer.

Messages and tools are those of OpenAI's chat API; `ToolCall.arguments` stays
the JSON text that the policy wrote, since the environment decides about text
that does not parse. A `Trajectory` is the record of one episode as token ids. A
`Recorder` writes it:

- sampled ids are kept as they came: no text is tokenised twice;
- a prompt begins with all that was sent and sampled before it;
- `Recorder.trajectory` compares the turns, which are trained on, with the
  tokens that the engine was sent and gave, and raises where they differ.
"""

import dataclasses
import enum
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from agentrl_jax.errors import GeneratorFault

ROLES = ("system", "user", "assistant", "tool")


@dataclasses.dataclass(frozen=True)
class ToolCall:
  """One tool call of the policy."""

  name: str
  arguments: str  # JSON text, as written by the policy
  id: str = ""


@dataclasses.dataclass(frozen=True)
class Message:
  """One message of a conversation."""

  role: str
  content: str = ""
  tool_calls: tuple[ToolCall, ...] = ()
  tool_call_id: str | None = None  # of the call that a tool's reply answers

  def __post_init__(self) -> None:
    if self.role not in ROLES:
      raise ValueError(f"role {self.role!r} is not one of {', '.join(ROLES)}")


@dataclasses.dataclass(frozen=True)
class Tool:
  """A function that the policy may call; `parameters` is a JSON schema."""

  name: str
  description: str
  parameters: Mapping[str, Any]


def message_to_json(message: Message) -> dict[str, Any]:
  """Returns the message in the form of OpenAI's chat API."""
  body: dict[str, Any] = {"role": message.role, "content": message.content}
  if message.tool_calls:
    body["tool_calls"] = [
      {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
      }
      for call in message.tool_calls
    ]
  if message.tool_call_id is not None:
    body["tool_call_id"] = message.tool_call_id
  return body


def message_from_json(body: Mapping[str, Any]) -> Message:
  """Reads OpenAI's form; content is null, text, or a list of text parts.

  Raises KeyError, TypeError, ValueError or AttributeError for other forms.
  """
  content = body.get("content")
  if isinstance(content, Sequence) and not isinstance(content, str):
    content = "".join(str(part.get("text", "")) for part in content)
  if not isinstance(content, str | None):
    raise TypeError(f"content must be a text, found {content!r:.80}")
  calls = tuple(
    ToolCall(
      name=str(call["function"]["name"]),
      arguments=str(call["function"]["arguments"]),
      id=str(call.get("id", "")),
    )
    for call in body.get("tool_calls") or ()
  )
  return Message(
    role=str(body["role"]),
    content=content or "",
    tool_calls=calls,
    tool_call_id=body.get("tool_call_id"),
  )


def tool_to_json(tool: Tool) -> dict[str, Any]:
  """Returns the tool as an entry of OpenAI's `tools`."""
  return {
    "type": "function",
    "function": {
      "name": tool.name,
      "description": tool.description,
      "parameters": dict(tool.parameters),
    },
  }


def tool_from_json(body: Mapping[str, Any]) -> Tool:
  """Reads one entry of OpenAI's `tools`."""
  function = body["function"]
  return Tool(
    name=str(function["name"]),
    description=str(function.get("description", "")),
    parameters=function.get("parameters", {}),
  )


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
class LearnedTurn:
  """The learner's view of a turn's sampled tokens, float32 [A] each.

  `logprob` is by the params that the update started from, in nats and at the
  sampler's temperature, so that `logprob - Turn.behavior_logprob` is the
  log-ratio of the loss.
  """

  logprob: np.ndarray
  advantage: np.ndarray  # as it was trained on: normalised


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
  max_turns: int = 0  # that it was allowed; 0: not recorded
  max_tokens: int = 0  # likewise

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


def seed_of(*parts: int | str) -> int:
  """Returns a seed of 31 bits, decided by `parts` and their order alone."""
  return _digest(parts) >> 33


def uniform_of(*parts: int | str) -> float:
  """Returns a number in [0, 1), decided by `parts` and their order alone."""
  return (_digest(parts) >> 11) / 2**53


def _digest(parts: tuple[int | str, ...]) -> int:
  text = json.dumps(parts)
  return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())


class TokenIdentityError(RuntimeError):
  """The tokens to train on differ from those sampled: a bug, so stop."""


class SampledTokens(Protocol):
  """An engine's answer; `rollout.api.Completion` is one."""

  @property
  def sampled(self) -> np.ndarray: ...

  @property
  def behavior_logprob(self) -> np.ndarray: ...

  @property
  def raw_logprob(self) -> np.ndarray: ...

  @property
  def version(self) -> np.ndarray: ...

  @property
  def policy_slot(self) -> int: ...


class Recorder:
  """The growing record of one episode."""

  def __init__(self, spec: EpisodeSpec) -> None:
    self._spec = spec
    self._observation = np.empty(0, np.int32)
    self._stream = np.empty(0, np.int32)
    self._turns: list[Turn] = []

  @property
  def num_turns(self) -> int:
    """Answers so far."""
    return len(self._turns)

  @property
  def stream(self) -> np.ndarray:
    """All tokens that the engine was sent or sampled, up to the last answer."""
    return self._stream

  @property
  def prompt(self) -> np.ndarray:
    """All tokens that stand before the next answer."""
    return np.concatenate([self._stream, self._observation])

  @property
  def last_turn(self) -> Turn:
    """The last answer; there must be one."""
    return self._turns[-1]

  def add_observation(self, tokens: np.ndarray) -> None:
    """Records the tokens that come between the last answer and the next."""
    self._observation = _frozen(tokens, np.int32)

  def add_action(
    self, prompt: np.ndarray, answer: SampledTokens, *, grammar: str = ""
  ) -> Turn:
    """Records the answer that the engine gave to `prompt`.

    Raises `GeneratorFault` for an answer without tokens or with
    log-probabilities that are not finite.
    """
    _require_usable(answer)
    if not np.array_equal(prompt[: len(self._stream)], self._stream):
      raise TokenIdentityError(
        f"{self._spec}: the prompt of turn {self.num_turns} does not begin"
        " with what was sent and sampled before it; the recorder has a bug"
      )
    turn = Turn(
      observation=self._observation,
      sampled=_frozen(answer.sampled, np.int32),
      behavior_logprob=_frozen(answer.behavior_logprob, np.float32),
      raw_logprob=_frozen(answer.raw_logprob, np.float32),
      version=_frozen(answer.version, np.int32),
      policy_slot=answer.policy_slot,
      grammar=grammar,
    )
    self._turns.append(turn)
    self._stream = _frozen(np.concatenate([prompt, turn.sampled]), np.int32)
    self._observation = np.empty(0, np.int32)
    return turn

  def set_reward(self, reward: float) -> None:
    """Sets the reward of the last answer, if there is one."""
    if self._turns:
      self._turns[-1] = dataclasses.replace(self._turns[-1], reward=reward)

  def trajectory(
    self,
    status: Status,
    *,
    reward: float,
    metrics: Mapping[str, float],
    transcript: Sequence[Mapping[str, object]],
    policy_slot_weights: tuple[float, ...] = (),
  ) -> Trajectory:
    """Returns the record, checked token for token."""
    trajectory = Trajectory(
      task=self._spec.task,
      group_id=self._spec.group_id,
      attempt=self._spec.attempt,
      seed=self._spec.seed,
      turns=tuple(self._turns),
      status=status,
      reward=reward,
      metrics=dict(metrics),
      transcript=tuple(transcript),
      policy_slot_weights=policy_slot_weights,
    )
    if not np.array_equal(tokens_of(trajectory), self._stream):
      raise TokenIdentityError(
        f"{self._spec}: the turns hold other tokens than the engine was sent"
        " and gave; the recorder has a bug"
      )
    return trajectory


def tokens_of(trajectory: Trajectory) -> np.ndarray:
  """All tokens of a trajectory in order, as the learner sees them."""
  parts = [
    part for t in trajectory.turns for part in (t.observation, t.sampled)
  ]
  return np.concatenate([np.empty(0, np.int32), *parts])


def _require_usable(answer: SampledTokens) -> None:
  if not len(answer.sampled):
    raise GeneratorFault(
      "the engine answered with no token; at least one is due"
    )
  for name in ("behavior_logprob", "raw_logprob"):
    if not np.isfinite(getattr(answer, name)).all():
      raise GeneratorFault(
        f"the engine answered with a {name} that is not finite; look for NaN"
        " in the weights of policy slot"
        f" {answer.policy_slot}, version {int(answer.version[0])}"
      )


def _frozen(array: np.ndarray, dtype: type) -> np.ndarray:
  copy: np.ndarray = np.array(array, dtype)
  copy.setflags(write=False)
  return copy
