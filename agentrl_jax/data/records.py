"""The records that travel from environments to the learner.

Messages and tools are those of OpenAI's chat API; `ToolCall.arguments` stays
the JSON text that the policy wrote, since the environment decides about text
that does not parse. A `Trajectory` is the record of one episode as token ids,
which `data.recorder` writes.

Rewards and metrics are numbers of the environment. `Scored` is their one gate:
what is no finite float is a fault of that episode, from whichever door it came.

Text enters the framework in these records, and leaves it as UTF-8: half a
surrogate pair becomes U+FFFD in their constructors.

Most episodes are one line of tokens: each prompt begins with all that was sent
and sampled before it. An agent that calls others, or that rewrites its history,
makes several. Each line has a role, and a prompt of its own at its start.
"""

import dataclasses
import enum
import hashlib
import json
import math
import reprlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from agentrl_jax.data.forms.content import given_in, text_of
from agentrl_jax.data.tool_schema import copied_parameters
from agentrl_jax.errors import EnvironmentFault, SchemaFault
from agentrl_jax.keys import Section, key

ROLES = ("system", "user", "assistant", "tool")
_NONE: Any = None  # which constructors refuse in place of a text
# Names of a tool's JSON schema: OpenAI's, Anthropic's, MCP's.
_SCHEMAS = ("parameters", "input_schema", "inputSchema")
MAX_STOPS = 4  # tokens of which any one ends an answer


def unicode_text(text: str) -> str:
  """Returns the text with U+FFFD for each half of a surrogate pair.

  Halves come from file names, from other encodings and from JSON's escapes.
  UTF-8 cannot encode them, so no tokenizer, file or client would take them.
  """
  if text.isascii():
    return text
  try:
    text.encode()
  except UnicodeEncodeError:
    # Joins two halves that follow each other to their character.
    return text.encode("utf-16-le", "surrogatepass").decode(
      "utf-16-le", "replace"
    )
  return text


def unicode_json(value: Any) -> Any:
  """Returns a JSON value with `unicode_text` for its keys and strings."""
  text = json.dumps(value, ensure_ascii=False)
  clean = unicode_text(text)
  return value if clean is text else json.loads(clean)


def unique_members(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
  """Makes an object of parsed JSON. Raises ValueError for a repeated key."""
  members: dict[str, Any] = {}
  for name, value in pairs:
    if name in members:
      raise ValueError(f"the key {json.dumps(name):.80} stands twice in it")
    members[name] = value
  return members


def _require_texts(record: Any, *names: str) -> None:
  """Passes fields of a frozen record through `unicode_text`."""
  for name in names:
    value = getattr(record, name)
    if not isinstance(value, str):
      raise TypeError(f"{name} must be a text, found {reprlib.repr(value)}")
    clean = unicode_text(value)
    if clean is not value:
      object.__setattr__(record, name, clean)


@dataclasses.dataclass(frozen=True)
class ToolCall:
  """One tool call of the policy."""

  name: str  # "" if the call could not be read
  arguments: str  # JSON text, as written by the policy
  id: str = ""

  def __post_init__(self) -> None:
    _require_texts(self, "name", "arguments", "id")


@dataclasses.dataclass(frozen=True)
class Message:
  """One message of a conversation."""

  role: str
  content: str = ""
  tool_calls: tuple[ToolCall, ...] = ()
  tool_call_id: str | None = None  # of the call that a tool's reply answers
  # Those of an endpoint's answer, by the fields of its API that have them, in
  # which they go back to it. The policy's are in its content.
  thoughts: Mapping[str, Any] = dataclasses.field(
    default_factory=dict, compare=False
  )

  def __post_init__(self) -> None:
    if self.role not in ROLES:
      raise ValueError(f"role {self.role!r} is not one of {', '.join(ROLES)}")
    _require_texts(self, "content")
    if not all(isinstance(call, ToolCall) for call in self.tool_calls):
      raise TypeError(
        f"tool_calls must be ToolCalls, found {reprlib.repr(self.tool_calls)}"
      )
    if self.tool_call_id is not None:
      _require_texts(self, "tool_call_id")


@dataclasses.dataclass(frozen=True)
class Tool:
  """A function that the policy may call; `parameters` is a JSON schema.

  What is null is what is not given: the description, the schema, or a keyword
  in it. Raises `SchemaFault` for a schema that cannot be shown.
  """

  name: str
  description: str
  parameters: Mapping[str, Any]

  def __post_init__(self) -> None:
    if self.description is None:
      object.__setattr__(self, "description", "")
    _require_texts(self, "name", "description")
    given = {} if self.parameters is None else self.parameters
    try:
      schema = unicode_json(copied_parameters(given))
    except ValueError as error:
      raise SchemaFault(
        f"the parameters of tool {reprlib.repr(self.name)}: {error}"
      ) from error
    object.__setattr__(self, "parameters", schema)


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
  return body | dict(message.thoughts)


def message_from_json(body: Mapping[str, Any]) -> Message:
  """Reads OpenAI's form; `forms.content` says what a content may be.

  Takes arguments of calls that are an object, as some servers write them, in
  place of its JSON text. Raises TypeError or ValueError for other forms.
  """
  given = given_in(body, "a message")
  return Message(
    role=given.get("role", ""),
    content=text_of(given),
    tool_calls=tuple(map(_call_from_json, given.get("tool_calls", ()))),
    tool_call_id=given.get("tool_call_id"),
  )


def _call_from_json(body: Any) -> ToolCall:
  call = given_in(body, "a tool call")
  function = given_in(call.get("function"), "the function of a tool call")
  if "arguments" not in call["function"]:
    raise ValueError(f"a call has no arguments: {function!r:.80}")
  arguments = function.get("arguments", {})
  if not isinstance(arguments, str):
    arguments = _json_of(arguments)
  return ToolCall(function.get("name", _NONE), arguments, call.get("id", ""))


def _json_of(value: Any) -> str:
  try:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
  except RecursionError as error:
    raise ValueError("arguments are nested too deeply") from error


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
  """Reads one entry of the `tools` of OpenAI's APIs, Anthropic's, or MCP's.

  Raises TypeError or ValueError for other forms.
  """
  given = given_in(body, "a tool")
  if given.get("type", "function") not in ("function", "custom"):
    raise ValueError(f"a tool of type {given['type']!r:.80} is no function")
  given = given_in(given.get("function", given), "the function of a tool")
  schema = next((given[name] for name in _SCHEMAS if name in given), _NONE)
  return Tool(given.get("name", _NONE), given.get("description", ""), schema)


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class EpisodeLimits(Section, section="episode"):
  """Limits that end an episode before its environment does."""

  max_turns: int = key(20, "answers of the policy", at_least=1)
  max_tokens: int = key(
    8192, "prompt, observations and answers together", at_least=1
  )
  max_answer_tokens: int = key(
    1024, "tokens of one answer, its stop token included", at_least=1
  )


def status_after(num_turns: int, max_turns: int) -> Status:
  """Returns an episode's status by the turn limit, `episode.max_turns`."""
  if num_turns < max_turns:
    return Status.RUNNING
  return Status.TASK_LIMIT_REACHED


LARGEST = float(np.finfo(np.float32).max)  # of rewards and metrics


def finite_number(value: object) -> float:
  """Returns a number as Python's float; scalars of numpy and jax are numbers.

  Raises ValueError for text, arrays, None, NaN and what float32 cannot hold.
  """
  if type(value) is float and -LARGEST <= value <= LARGEST:
    return value
  found = ""
  try:
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
      value = value.item()
    if isinstance(value, str | bytes) or hasattr(value, "__len__"):
      raise TypeError  # float() would read text, and arrays of one entry
    number = float(value)  # type: ignore[arg-type]
    found = f"{number}"
  except OverflowError:
    number, found = math.inf, "a number"
  except (TypeError, ValueError):
    number, found = math.nan, f"{value!r:.80}"
  if -LARGEST <= number <= LARGEST:
    return number
  raise ValueError(
    f"{found} ({type(value).__name__}) is no number from {-LARGEST:.2g} to "
    f"{LARGEST:.2g}, the range of float32"
  )


class Scored:
  """Base of records with numbers of the environment: makes them floats.

  Raises `EnvironmentFault` for other rewards, metrics and statuses.
  """

  def __post_init__(self) -> None:
    given = vars(self)
    checked: dict[str, Any] = {"reward": _number("reward", given["reward"])}
    for name in given.keys() & {"metrics", "role_rewards"}:
      checked[name] = _numbers(name, given[name])
    if "status" in given and not isinstance(given["status"], Status):
      checked["status"] = _status(given["status"])
    for name, value in checked.items():
      object.__setattr__(self, name, value)  # as frozen dataclasses do


def _number(name: str, value: object) -> float:
  try:
    return finite_number(value)
  except ValueError as error:
    raise EnvironmentFault(
      f"{name}={error}; look at how the environment computes it"
    ) from error


def _numbers(name: str, values: object) -> dict[str, float]:
  if not isinstance(values, Mapping):
    raise EnvironmentFault(
      f"{name}={values!r:.80} is no mapping of names to numbers"
    )
  return {
    unicode_text(str(n)): _number(f"{name}[{n!r:.80}]", v)
    for n, v in values.items()
  }


def _status(value: object) -> Status:
  try:
    return Status(value)
  except ValueError as error:
    raise EnvironmentFault(
      f"status={value!r:.80} is not one of "
      f"{', '.join(status.value for status in Status)}"
    ) from error


@dataclasses.dataclass(frozen=True)
class Task:
  """One problem: the environment's name, a split, and an index within it."""

  name: str
  split: str
  index: int

  def __post_init__(self) -> None:
    _require_texts(self, "name", "split")


@dataclasses.dataclass(frozen=True, kw_only=True)
class EpisodeSpec:
  """Identity of an episode, before it is played."""

  task: Task
  group_id: str
  attempt: int  # position within the group
  seed: int


@dataclasses.dataclass(frozen=True, eq=False)
class Turn(Scored):
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
  line: int = 0  # of tokens, that the answer continues or begins
  # Of each tool call of the answer, `tool_calls.Flaw.value`, or "" if it has
  # none. None: the answer was offered no tools.
  calls: tuple[str, ...] | None = None
  is_cut: bool = False  # ended by a number of tokens, not by a stop token
  # Of a mixture with router replay, the experts by which the engine computed
  # the token before each token of observation and answer: [O + A, L layers, K
  # experts], uint8 or uint16, whose largest number is none. The learner routes
  # tokens without experts itself, and all if the shape is another.
  experts: np.ndarray | None = None

  def __post_init__(self) -> None:
    super().__post_init__()
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
class Line:
  """Turns whose prompts continue each other: one sequence for the learner."""

  role: str
  numbers: tuple[int, ...]  # of its turns within the trajectory
  turns: tuple[Turn, ...]

  @property
  def num_tokens(self) -> int:
    """Prompt, observations and answers together."""
    return sum(len(t.observation) + len(t.sampled) for t in self.turns)

  @property
  def tokens(self) -> np.ndarray:
    """All tokens in order, int32, as the learner sees them."""
    parts = [x for turn in self.turns for x in (turn.observation, turn.sampled)]
    return np.concatenate([np.empty(0, np.int32), *parts])


@dataclasses.dataclass(frozen=True, eq=False)
class Trajectory(Scored):
  """Record of one episode, from the first observation to the last reward.

  Turns are in the order of their answers, over all lines. The observation of a
  line's first turn is its whole prompt: where a line departs from another one,
  it has the tokens up to there once more, as tokens that it read.
  """

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
  roles: tuple[str, ...] = ()  # of each line; () if none was named
  role_rewards: Mapping[str, float] = dataclasses.field(default_factory=dict)
  tools: tuple[Tool, ...] = ()  # shown at the start; files do not keep them
  fault: str = ""  # why it ended, if not by the policy; files do not keep it

  def __post_init__(self) -> None:
    super().__post_init__()
    _require_texts(self, "fault")

  @property
  def lines(self) -> tuple[Line, ...]:
    """The lines that have an answer."""
    numbers: dict[int, list[int]] = {}
    for number, turn in enumerate(self.turns):
      numbers.setdefault(turn.line, []).append(number)
    return tuple(
      Line(self.role_of(line), tuple(own), tuple(self.turns[u] for u in own))
      for line, own in sorted(numbers.items())
    )

  def role_of(self, line: int) -> str:
    """Returns the role of a line; "" if it was not named."""
    return self.roles[line] if self.roles else ""

  @property
  def num_tokens(self) -> int:
    """Prompts, observations and answers of all lines together."""
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
