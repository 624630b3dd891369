"""Schema of the JSON that the page reads: viewer.js reads these fields alone.

The server and one-file pages answer three questions with these classes, by
`dataclasses.asdict`: `now` (RunNow), `trajectories` (Listing), `curves` (a list
of Drawing), and `trajectories/<id>` (TrajectoryPage). The report of a run has
the last two of a few held-out episodes.
"""

import dataclasses
from collections.abc import Mapping, Sequence


@dataclasses.dataclass(frozen=True, kw_only=True)
class FaultLine:
  """A fault that the run survived."""

  time_s: float  # since the epoch
  update: int
  text: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunNow:
  """The newest numbers of a run."""

  name: str
  is_finished: bool
  update: int  # the last one, of `updates`
  updates: int
  age_s: float | None  # of the last update; None before the first
  figures: Mapping[str, float]  # by their text
  success: Mapping[str, float]  # by task
  success_of: str  # which episodes these are
  stopped: Sequence[str]  # tasks of which no groups start
  alarms: Sequence[str]  # the latest sentences, while one holds
  num_faults: int
  faults: Sequence[FaultLine]  # the latest


@dataclasses.dataclass(frozen=True, kw_only=True)
class Drawing:
  """A curve of the run as SVG."""

  title: str
  note: str
  svg: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class ListedTrajectory:
  """A kept trajectory, without its text and its tokens.

  `id` is `<file>.<line>.<place in the group>`, which stays the same while the
  run goes on.
  """

  id: str
  group: str  # those of one group are shown side by side
  played: str  # "training", or the evaluation, as in "rl greedy"
  update: int | None  # that the group was trained on in; None if evaluated
  task: str
  split: str
  index: int
  attempt: int
  status: str
  is_success: bool
  reward: float
  group_mean: float  # mean reward of the group
  num_turns: int
  num_cut: int  # turns whose answer a limit of tokens ended
  num_tokens: int  # of prompts, observations and answers together
  num_sampled: int
  oldest_version: int  # -1 if no policy answered
  newest_version: int
  policy_slots: Sequence[int]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Listing:
  """All kept trajectories, the newest update first, then the evaluations."""

  trajectories: Sequence[ListedTrajectory]
  problems: Sequence[str] = ()  # sentences about files that cannot be read
  tag: str = ""  # differs whenever a file differs


@dataclasses.dataclass(frozen=True, kw_only=True)
class CallView:
  """A tool call."""

  name: str
  arguments: str  # one per line, or as the policy wrote them if no JSON
  is_json: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class MessageView:
  """A message of the transcript."""

  role: str
  line_title: str  # on the first message of each line, if of several
  content: str
  calls: Sequence[CallView]
  turn: int | None  # of the policy's answers: their place in `turns`


@dataclasses.dataclass(frozen=True, kw_only=True)
class TurnView:
  """An answer of the policy, with the tokens that it read and sampled."""

  line_title: str
  policy_slot: int
  reward: float
  has_grammar: bool
  is_cut: bool  # ended by a limit of tokens
  observation: Sequence[str]  # texts of the tokens that were read
  sampled: Sequence[str]  # and of those below, one entry per sampled token
  behavior_logprob: Sequence[float]  # as they were drawn, nats
  raw_logprob: Sequence[float]  # at temperature 1
  version: Sequence[int]
  # Of the learner, before the update; empty if the turn was not trained on.
  learner_logprob: Sequence[float]
  advantage: Sequence[float]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrajectoryPage:
  """One trajectory: its messages, and per answer its tokens."""

  messages: Sequence[MessageView]
  turns: Sequence[TurnView]
  metrics: Mapping[str, float]
