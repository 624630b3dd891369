"""The CPU time that one process needs for a turn, with all episodes in flight.

  python -m bench.controller.playing
  python -m bench.controller.playing --episodes=1000 --profile=30

The controller's own groups, players, recorders and chat codec, with Qwen's
tokenizer and template. The policy and the environment cost nothing: the policy
repeats an answer that calls a tool, the environment replies with a table. An
episode has about 650 tokens in five turns. No episode takes its first turn
before all have been opened, so that all are in flight.

`us` is the CPU time of the process for each turn, everything that an episode
costs counted: its start, its end, its group. `of_tokenizer` is the share that
the package `tokenizers` needs alone, for the same texts and answers, which is
the floor of any controller that keeps tokens. `kib` is memory of an episode.
"""

import argparse
import asyncio
import contextlib
import cProfile
import dataclasses
import json
import pstats
import sys
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Any

import numpy as np

from agentrl_jax.controller.episode import EpisodeWaits, Sampling
from agentrl_jax.controller.groups.group import (
  GroupLimits,
  RetryLimits,
  run_group,
)
from agentrl_jax.controller.metrics import Monitor
from agentrl_jax.controller.player import PolicyPlayer
from agentrl_jax.data.chat.codec import ChatCodec
from agentrl_jax.data.records import (
  EpisodeLimits,
  Group,
  Message,
  Status,
  Task,
  Tool,
  ToolCall,
)
from agentrl_jax.env.interface import Environment, Session, Step
from agentrl_jax.garbage import spare_collections
from agentrl_jax.rollout.api import Completion, SamplingParams
from bench.environments.episodes import resident_kib
from bench.qwen_chat import load_qwen, make_tokenizer

TURNS, GROUP = 5, 8
_WAIT_S = 3600.0
_TOOL = Tool(
  "execute_sql",
  "Runs one statement in the database and returns its rows.",
  {
    "type": "object",
    "properties": {
      "statement": {"type": "string", "description": "a statement of MySQL"}
    },
    "required": ["statement"],
  },
)
_TASK = Message(
  "user",
  "How many orders of more than 20 euros did each customer from Lisbon make in "
  "2019? The database has the tables customers (id, name, city, since) and "
  "orders (id, customer, total, placed). Explore them, and answer with the "
  "final number.",
)


class Sql(Environment):
  """Replies at once with rows, and ends an episode after `TURNS` answers."""

  name = "sql"

  def indices(self, split: str) -> range:
    """See `Environment.indices`."""
    del split
    return range(1 << 20)

  @contextlib.asynccontextmanager
  async def open(self, task: Task, *, seed: int) -> AsyncIterator[Session]:
    """See `Environment.open`."""
    del seed
    yield _Rows(task.index)


class _Rows(Session):
  tools = (_TOOL,)

  def __init__(self, index: int) -> None:
    self._index, self._turn = index, 0

  async def reset(self) -> Step:
    return Step((_TASK,))

  async def step(self, answer: Message) -> Step:
    if answer.tool_calls[0].name != _TOOL.name:
      raise AssertionError(f"the answer changed on its way: {answer}")
    self._turn += 1
    if self._turn == TURNS:
      reward = float(self._index % 2)
      return Step((), reward, Status.COMPLETED)
    return Step((Message("tool", reply_of(self._index, self._turn)),))


def reply_of(index: int, turn: int) -> str:
  """Returns the environment's text of a turn."""
  return (
    f"+----+-------+\n| id | total |\n+----+-------+\n| {index} | {turn}7.50 |"
    "\n+----+-------+\n1 row in set"
  )


def answer_of(turn: int) -> Message:
  """Returns the policy's message of a turn."""
  statement = (
    "SELECT customers.name, COUNT(*) FROM orders JOIN customers ON "
    f"orders.customer = customers.id WHERE total > 2{turn} GROUP BY name"
  )
  arguments = json.dumps({"statement": statement})
  return Message("assistant", "", (ToolCall(_TOOL.name, arguments, "0"),))


class Repeats:
  """Answers with recorded tokens, once all episodes have asked."""

  num_policy_slots = 1

  def __init__(self, codec: ChatCodec, num_episodes: int) -> None:
    self._answers = [
      _completion(codec.write(answer_of(turn))) for turn in range(TURNS)
    ]
    self._missing = num_episodes
    self._all_asked = asyncio.Event()
    self.started_kib = 0.0

  async def generate(
    self, prompt: Sequence[int] | np.ndarray, sampling: SamplingParams
  ) -> Completion:
    """Returns the answer to a prompt; see `Generator.generate`."""
    del prompt
    if not self._all_asked.is_set():
      self._missing -= 1
      if not self._missing:
        self.started_kib = resident_kib()
        self._all_asked.set()
      await self._all_asked.wait()
    await asyncio.sleep(0)  # an answer takes another round of the loop
    return self._answers[sampling.seed % TURNS]


def _completion(tokens: np.ndarray) -> Completion:
  logprob = np.full(len(tokens), -0.5, np.float32)
  version = np.zeros(len(tokens), np.int32)
  return Completion(tokens, logprob, logprob, version, policy_slot=0)


@dataclasses.dataclass(frozen=True)
class Measured:
  """Results of a number of episodes."""

  # At its end `asyncio.run` writes the representation of its result.
  groups: list[Group] = dataclasses.field(repr=False)
  cpu_s: float
  wall_s: float
  kib: float


async def play(codec: ChatCodec, num_episodes: int) -> Measured:
  """Plays so many episodes at once, and measures the process."""
  before_kib = resident_kib()
  generator = Repeats(codec, num_episodes)
  player = PolicyPlayer(
    environments={Sql.name: Sql()},
    generator=generator,
    codec=codec,
    limits=EpisodeLimits(
      max_turns=TURNS + 1, max_tokens=2048, max_answer_tokens=256
    ),
    sampling=Sampling(temperature=1.0, top_k=0, top_p=1.0, calls="free"),
    waits=EpisodeWaits(
      session_timeout_s=_WAIT_S,
      reply_timeout_s=_WAIT_S,
      answer_timeout_s=_WAIT_S,
    ),
  )
  monitor = Monitor()
  limits = GroupLimits(size=GROUP, deadline_s=_WAIT_S)
  retries = RetryLimits(max_retries=0, backoff_s=0.0)
  begun, cpu = time.perf_counter(), time.process_time()
  groups = await asyncio.gather(
    *(
      run_group(
        Task(Sql.name, "train", n),
        player,
        limits,
        retries,
        monitor,
        group_id=f"{n:08d}",
        seed=n,
      )
      for n in range(num_episodes // GROUP)
    )
  )
  return Measured(
    [group for group in groups if group is not None],
    time.process_time() - cpu,
    time.perf_counter() - begun,
    (generator.started_kib - before_kib) / num_episodes,
  )


def tokenizer_s(codec: ChatCodec, num_episodes: int) -> float:
  """Measures CPU seconds of the tokenizer alone, for the same episodes."""
  tokenizer = make_tokenizer()
  start = codec.decode(codec.start([_TASK], [_TOOL]))
  answers = [codec.write(answer_of(turn)).tolist() for turn in range(TURNS)]
  cpu = time.process_time()
  for index in range(num_episodes // GROUP):
    for _ in range(GROUP):
      tokenizer.encode(start, add_special_tokens=False)
      for turn, answer in enumerate(answers, 1):
        tokenizer.decode(answer, skip_special_tokens=False)
        if turn < TURNS:
          tokenizer.encode(reply_of(index, turn), add_special_tokens=False)
  return time.process_time() - cpu


def measure(num_episodes: int) -> dict[str, Any]:
  """Returns the figures of the module's description."""
  codec = load_qwen()
  asyncio.run(play(codec, GROUP))  # what is made once, is made before
  spare_collections()  # as a run does
  found = asyncio.run(play(codec, num_episodes))
  trajectories = [t for group in found.groups for t in group.trajectories]
  if len(trajectories) != num_episodes:
    raise AssertionError(f"{len(trajectories)} of {num_episodes} were finished")
  turns = num_episodes * TURNS
  alone_s = tokenizer_s(codec, num_episodes)
  return {
    "episodes": num_episodes,
    "tokens": trajectories[0].num_tokens,
    "turns": turns,
    "us": round(1e6 * found.cpu_s / turns),
    "of_tokenizer": round(alone_s / found.cpu_s, 2),
    "turns_per_s": round(turns / found.wall_s),
    "kib": round(found.kib, 1),
  }


async def profiled(playing: Coroutine[Any, Any, Any], lines: int) -> None:
  """Prints the functions that take the most time while episodes are played."""
  with cProfile.Profile() as profile:
    await playing
  pstats.Stats(profile).sort_stats("tottime").print_stats(lines)


def main() -> None:
  """Prints the figures as JSON."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("--episodes", type=int, default=10_000)
  parser.add_argument("--profile", type=int, default=0, metavar="LINES")
  options = parser.parse_args()
  if options.profile:
    codec = load_qwen()
    asyncio.run(profiled(play(codec, options.episodes), options.profile))
    return
  found = measure(options.episodes - options.episodes % GROUP)
  sys.stdout.write(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
  main()
