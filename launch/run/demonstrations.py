"""What the policy learns from before it learns by itself: experts at play.

The experts err on purpose, as often as the config says. Their play trains the
tokenizer, then becomes packed rows for the warm start. Every demonstration is a
function of (seed, position), so processes share the work and the result is the
same however many there are.
"""

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import io
import multiprocessing
import os
import pathlib
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
from tokenizers import Tokenizer

from agentrl_jax.controller.player import ExpertPlayer, Player, ScriptPlayer
from agentrl_jax.controller.thread import STOP_S, ControllerThread
from agentrl_jax.data import seeds
from agentrl_jax.data.chat import template
from agentrl_jax.data.chat.tokenizer import train_tokenizer
from agentrl_jax.data.messages import Message, Tool, message_from_json
from agentrl_jax.data.packing import Rows, pack
from agentrl_jax.data.task_source import TaskStream
from agentrl_jax.data.trajectory import EpisodeSpec, Task, Trajectory
from agentrl_jax.env.interface import Environment
from agentrl_jax.env.loading import load_environment
from agentrl_jax.env.mistakes import require_known
from agentrl_jax.env.remote.other_loop import OtherLoopEnvironment
from agentrl_jax.errors import CheckpointError
from launch.config.chat import codec_of
from launch.config.settings import EnvironmentSettings, Settings

CHUNK = 512  # demonstrations that are played and packed together


@contextlib.contextmanager
def loaded_environments(
  settings: Mapping[str, EnvironmentSettings],
) -> Iterator[dict[str, Environment]]:
  """The environments of the config, by name; leaving closes them.

  They can be played from any event loop: those that need one loop for all that
  they do get one, in a thread of its own. Raises `ConfigError` for options and
  mistakes that an environment does not know.
  """
  found = {name: _load(name, s) for name, s in settings.items()}
  bound = {name: e for name, e in found.items() if e.needs_one_loop}
  free = [e for name, e in found.items() if name not in bound]
  with contextlib.ExitStack() as stack:
    if bound:
      thread = stack.enter_context(ControllerThread())
      stack.callback(lambda: thread.run(_close(bound.values()), STOP_S))
      for name, environment in bound.items():
        found[name] = OtherLoopEnvironment(
          environment, environment, thread.loop
        )
    stack.callback(lambda: asyncio.run(_close(free)))
    yield found


def _load(name: str, settings: EnvironmentSettings) -> Environment:
  environment = load_environment(settings.target, settings.options)
  require_known(
    settings.mistakes,
    environment.mistakes,
    where=f"environments.{name}.mistakes",
  )
  return environment


async def _close(environments: Iterable[Environment]) -> None:
  for environment in environments:
    await environment.close()


def task_stream(
  settings: Settings,
  environments: Mapping[str, Environment],
  *,
  split: str,
  purpose: str,
  shuffle: bool = True,
) -> TaskStream:
  """A stream of tasks; each purpose has an order of its own."""
  return TaskStream(
    {name: env.indices(split) for name, env in environments.items()},
    weights={name: s.weight for name, s in settings.environments.items()},
    split=split,
    seed=seeds.seed_of(settings.seed, "tasks", purpose) % 2**31,
    shuffle=shuffle,
  )


def make_tokenizer(
  settings: Settings,
  *,
  num_texts: int,
  vocab_size: int,
  whole_tokens: Sequence[str],
  whole_lines: int,
) -> Tokenizer:
  """A tokenizer of the environments' own words, learned from experts' play."""
  with loaded_environments(settings.environments) as environments:
    player = ScriptPlayer(
      environments=environments,
      max_turns=settings.episode.max_turns,
      mistakes=_mistakes(settings),
      waits=settings.waits,
    )
    played = asyncio.run(_play(settings, player, environments, 0, num_texts))
    tools = asyncio.run(_tools(environments, [t.task for t in played]))
  return train_tokenizer(
    [_text(t, tools[t.task.name]) for t in played],
    vocab_size=vocab_size,
    whole_tokens=whole_tokens,
    whole_lines=whole_lines,
  )


def demonstrate(
  settings: Settings,
  run: pathlib.Path,
  num_demonstrations: int,
  on_progress: Callable[[int], None],
) -> Rows:
  """Plays and packs demonstrations on all cores, in the chat of the run.

  `on_progress` is told how many there are so far.
  """
  starts = range(0, num_demonstrations, CHUNK)
  parts: list[Rows] = []
  with concurrent.futures.ProcessPoolExecutor(
    max_workers=os.cpu_count(),
    # A fork of a process with threads may hang; a spawned one starts clean.
    mp_context=multiprocessing.get_context("spawn"),
  ) as pool:
    jobs = [
      pool.submit(
        _pack_chunk,
        settings,
        run,
        start,
        min(CHUNK, num_demonstrations - start),
      )
      for start in starts
    ]
    for job in jobs:  # in the order of positions, whoever is first
      parts.append(job.result())
      on_progress(min(len(parts) * CHUNK, num_demonstrations))
  return _join(parts)


def save_rows(path: pathlib.Path, rows: Rows) -> None:
  """Files packed rows, whole or not at all."""
  partial = path.with_suffix(".partial.npz")
  np.savez_compressed(partial, **dataclasses.asdict(rows))
  partial.replace(path)


def load_rows(path: pathlib.Path, content: bytes | None = None) -> Rows:
  """The rows that were filed, or whose file has this content."""
  try:
    content = path.read_bytes() if content is None else content
    with np.load(io.BytesIO(content)) as found:
      return Rows(**{f.name: found[f.name] for f in dataclasses.fields(Rows)})
  except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
    raise CheckpointError(
      f"{path} cannot be read as demonstrations: {error}. Remove it, and it "
      "is made again"
    ) from error


def _pack_chunk(
  settings: Settings, run: pathlib.Path, start: int, number: int
) -> Rows:
  """One process's piece of work."""
  with loaded_environments(settings.environments) as environments:
    player = ExpertPlayer(
      environments=environments,
      codec=codec_of(run, settings.chat),
      limits=settings.episode,
      mistakes=_mistakes(settings),
      waits=settings.waits,
    )
    played = asyncio.run(_play(settings, player, environments, start, number))
  return pack(played, row_length=settings.batch.row_length)


async def _play(
  settings: Settings,
  player: Player,
  environments: Mapping[str, Environment],
  start: int,
  number: int,
) -> list[Trajectory]:
  stream = task_stream(
    settings,
    environments,
    split="train",
    purpose="demonstrations",
    shuffle=False,
  )
  return [
    await player.play(
      EpisodeSpec(
        task=stream.at(position),
        group_id=f"demonstration-{position}",
        attempt=0,
        seed=seeds.seed_of(settings.seed, "demonstration", position),
      )
    )
    for position in range(start, start + number)
  ]


async def _tools(
  environments: Mapping[str, Environment], tasks: Sequence[Task]
) -> dict[str, tuple[Tool, ...]]:
  tools = {}
  for task in {task.name: task for task in tasks}.values():
    async with environments[task.name].open(task, seed=0) as session:
      await session.reset()
      tools[task.name] = session.tools
  return tools


def _text(trajectory: Trajectory, tools: Sequence[Tool]) -> str:
  """The conversation as the policy will read and write it."""
  messages = [message_from_json(m) for m in trajectory.transcript]
  first = _first_answer(messages)
  start = template.CompactTemplate().start(messages[:first], tools)
  return start + template.render_messages(messages[first:])


def _first_answer(messages: Sequence[Message]) -> int:
  roles = [m.role for m in messages]
  return roles.index("assistant") if "assistant" in roles else len(roles)


def _mistakes(settings: Settings) -> dict[str, Mapping[str, float]]:
  return {name: s.mistakes for name, s in settings.environments.items()}


def _join(parts: Sequence[Rows]) -> Rows:
  names = [field.name for field in dataclasses.fields(Rows)]
  return Rows(
    **{
      name: np.concatenate([getattr(p, name) for p in parts]) for name in names
    }
  )


def shuffled(rows: Rows, *, seed: int, epochs: int) -> Iterator[np.ndarray]:
  """Row numbers, all of them once per epoch, each epoch in another order."""
  for epoch in range(epochs):
    rng = np.random.default_rng([seed, epoch])
    yield rng.permutation(len(rows.token))
