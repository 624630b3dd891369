"""The risky bandit: one of two machines pays little, the other rarely much.

RAGEN's task (arXiv:2504.20073), one call long. Its machines have names that
hint at the risk; here the text says what each pays, since a policy without
pre-training knows no hints.
"""

import contextlib
import dataclasses
import random
from collections.abc import AsyncIterator, Mapping
from typing import Any

from agentrl_jax.data.records import Message, Status, Task, Tool
from agentrl_jax.data.split import split_of
from agentrl_jax.env.indexed import IndexedEnvironment
from agentrl_jax.env.interface import Expert, OneCallSession, Session, Step
from agentrl_jax.env.options import require_one_of, require_positive
from agentrl_jax.errors import ConfigError
from studies.environments.bandit.expert import MISTAKES, Puller
from studies.environments.bandit.scripted import POLICIES

NAMES = (
  "amber",
  "beryl",
  "coral",
  "ember",
  "flint",
  "garnet",
  "hazel",
  "iris",
  "jade",
  "laurel",
  "maple",
  "nova",
  "opal",
  "pearl",
  "quartz",
  "raven",
  "sable",
  "topaz",
  "umber",
  "violet",
  "willow",
  "zephyr",
  "cedar",
  "dune",
)
CHANCE_BY = {
  "episode": "attempts at a task have luck of their own",
  "task": "all attempts at a task have the same luck",
}
NO_CALL = "No tool call found. Call pull."


@dataclasses.dataclass(frozen=True)
class Machines:
  """Two machines, in the order in which they are described."""

  names: tuple[str, str]
  risky: int  # position in `names`


class Bandit(IndexedEnvironment[Machines]):
  """Task i of a split has two machines, of which one is to be pulled.

  The risky machine pays 1 or nothing. The reward is the pay, and `success` says
  whether the machine with the higher expected pay was pulled.

  Args:
    sure: pay of the other machine, between 0 and 1.
    chance: of the risky machine's pay, above 0; not equal to `sure`, so that
      one machine is better.
    chance_by: one of `CHANCE_BY`.
    max_turns: answers of the policy until one pulls a machine.
    num_tasks: of each split.
  """

  name = "bandit"
  mistakes = MISTAKES
  policies = POLICIES
  baseline = "first"

  def __init__(
    self,
    *,
    sure: float = 0.1,
    chance: float = 0.25,
    chance_by: str = "episode",
    max_turns: int = 1,
    num_tasks: int = 1 << 20,
  ):
    if not 0 < sure < 1:
      raise ConfigError(f"sure={sure}; allowed is a pay between 0 and 1")
    if not 0 < chance <= 1 or chance == sure:
      raise ConfigError(
        f"chance={chance}; allowed is above 0, at most 1, and not sure={sure}, "
        "with which no machine would be better"
      )
    require_one_of(CHANCE_BY, chance_by=chance_by)
    require_positive(max_turns=max_turns)
    super().__init__(num_tasks=num_tasks)
    self._sure, self._chance = sure, chance
    self._chance_by = chance_by
    self._max_turns = max_turns

  @contextlib.asynccontextmanager
  async def open(self, task: Task, *, seed: int) -> AsyncIterator[Session]:
    """Opens a session; the seed decides whether the risky machine pays.

    Unless `chance_by` is "task": then the task does.
    """
    machines = self.find(task)
    words = [task.split, task.index]
    if self._chance_by == "episode":
      words.append(seed)
    rng = random.Random("/".join(map(str, ("luck", *words))))
    pays = [self._sure, self._sure]
    pays[machines.risky] = float(rng.random() < self._chance)
    better = machines.risky
    if self._chance < self._sure:
      better = 1 - better
    yield _PullSession(
      machines.names,
      text=self._describe(machines),
      pays=pays,
      better=better,
      max_turns=self._max_turns,
    )

  def expert(
    self, task: Task, *, seed: int, mistakes: Mapping[str, float]
  ) -> Expert:
    """Makes an expert that pulls the better machine; see `expert.MISTAKES`.

    It does not know whether the risky machine will pay.
    """
    machines = self.find(task)
    better = machines.risky if self._chance > self._sure else 1 - machines.risky
    return Puller(
      machines.names[better],
      machines.names[1 - better],
      seed=seed,
      mistakes=mistakes,
    )

  def generate(self, split: str, index: int) -> Machines:
    """Draws two names that the split owns in this order."""
    rng = random.Random(f"{split}/{index}")
    while True:  # the split owns a drawn text with probability 1/2
      first, second = rng.sample(NAMES, 2)
      machines = Machines((first, second), rng.randrange(2))
      if split_of(self._describe(machines)) == split:
        return machines

  def _describe(self, machines: Machines) -> str:
    lines = [f"{name} pays {self._sure:g}." for name in machines.names]
    risky = machines.names[machines.risky]
    lines[machines.risky] = f"{risky} pays 1 with a chance of {self._chance:g}."
    return "\n".join((*lines, "Pull one of these machines."))


class _PullSession(OneCallSession):
  def __init__(
    self,
    names: tuple[str, str],
    *,
    text: str,
    pays: list[float],
    better: int,
    max_turns: int,
  ):
    super().__init__(text, max_turns=max_turns, no_call=NO_CALL)
    self.tools = (_pull_tool(names),)
    self._names, self._pays, self._better = names, pays, better

  def play(self, tool: str, arguments: Mapping[str, Any]) -> Step:
    del tool  # there is one
    pulled = self._names.index(arguments["machine"])
    return Step(
      (),
      reward=self._pays[pulled],
      status=Status.COMPLETED,
      metrics={"success": float(pulled == self._better)},
    )

  def go_on(self, reply: Message) -> Step:
    step = super().go_on(reply)
    if step.status is Status.RUNNING:
      return step
    return dataclasses.replace(step, metrics={"success": 0.0})


def _pull_tool(names: tuple[str, str]) -> Tool:
  return Tool(
    "pull",
    "Pulls a machine once.",
    {
      "type": "object",
      "properties": {"machine": {"type": "string", "enum": list(names)}},
      "required": ["machine"],
      "additionalProperties": False,
    },
  )
