"""Episodes of a run, as the plan of the whole system counts them."""

import dataclasses
import math

from agentrl_jax.errors import ConfigError
from launch.config.settings import Settings
from launch.planning.roofline import Attempts


@dataclasses.dataclass(frozen=True, kw_only=True)
class Workload:
  """Means over the episodes of a run.

  - An episode alternates answers and replies: prompt, answer, reply, answer
    and so on. It ends with an answer.
  - `attempts` has the tokens: those that the attempts of a group share, and
    those after them, answers and replies together.
  - While the environment works on a reply, the episode holds no slot.
  """

  attempts: Attempts
  num_answers: float  # of an episode
  answer_tokens: float  # of one answer
  environment_s: float  # of the environment, for each answer
  spread: float  # standard deviation of an episode's work over its mean
  group_size: int  # attempts at a task

  @property
  def sampled_tokens(self) -> float:
    """Tokens of an episode that the policy samples."""
    return self.num_answers * self.answer_tokens

  def prefilled_tokens(self, *, reuse: bool) -> float:
    """Tokens of an episode that a server has to prefill.

    With reuse of keys and values, the shared prompt once for all attempts that
    share it, and each reply once: p / G + (t - n a) for p tokens of prompt, t
    tokens after it, n answers of a tokens, and G attempts. Without, each answer
    prefills all tokens before it: n p + (n - 1) t / 2, since the k-th answer
    has about a share (k - 1) / n of t before it.
    """
    a = self.attempts
    if reuse:
      return a.prompt / a.num + a.turns - self.sampled_tokens
    return self.num_answers * a.prompt + (self.num_answers - 1) * a.turns / 2


def read_workload(
  settings: Settings,
  attempts: Attempts | None,
  *,
  num_answers: float | None,
  answer_tokens: float | None,
  environment_s: float,
  spread: float,
) -> Workload:
  """Returns the workload of the flags of the same names.

  Raises `ConfigError` if one is missing, impossible or beyond the config.
  """
  missing = [
    name
    for name, value in (
      ("--turns", attempts),
      ("--num_answers", num_answers),
      ("--answer_tokens", answer_tokens),
    )
    if value is None
  ]
  if attempts is None or num_answers is None or answer_tokens is None:
    raise ConfigError(
      f"--system needs {', '.join(missing)}: an episode's mean tokens after "
      "its prompt, its mean number of answers, and the mean tokens of an answer"
    )
  limits = settings.episode
  _check("num_answers", num_answers, 1, limits.max_turns, "episode.max_turns")
  _check(
    "answer_tokens",
    answer_tokens,
    1,
    limits.max_answer_tokens,
    "episode.max_answer_tokens",
  )
  _check("environment_s", environment_s, 0, math.inf, "")
  _check("spread", spread, 0, 10, "")
  if num_answers * answer_tokens > attempts.turns:
    raise ConfigError(
      f"--num_answers={num_answers:g} of --answer_tokens={answer_tokens:g} are "
      f"{num_answers * answer_tokens:g} tokens, and --turns={attempts.turns} "
      "counts answers and replies together: raise --turns, or lower the others"
    )
  return Workload(
    attempts=attempts,
    num_answers=num_answers,
    answer_tokens=answer_tokens,
    environment_s=environment_s,
    spread=spread,
    group_size=settings.group.size,
  )


def _check(
  name: str, value: float, least: float, most: float, key: str
) -> None:
  if least <= value <= most and math.isfinite(value):
    return
  bound = f" to {most:g}" if math.isfinite(most) else " or more"
  raise ConfigError(
    f"--{name}={value:g} must be {least:g}{bound}"
    + (f", since {key} is {most:g}" if key and value > most else "")
  )
