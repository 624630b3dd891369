"""Plays experts, for the tokenizer and for supervised training.

The experts make mistakes on purpose, as often as the config says. Their
episodes train the tokenizer, then become packed rows for the warm start. Every
demonstration is a function of (seed, position), so processes share the work and
the result is the same for any number of them.
"""

import asyncio
import concurrent.futures
import io
import logging
import multiprocessing
import os
import pathlib
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from agentrl_jax.controller.episode import environments_own
from agentrl_jax.controller.groups.group import play_with_retries
from agentrl_jax.controller.metrics import Monitor
from agentrl_jax.controller.player import ExpertPlayer, ExpertTextPlayer, Player
from agentrl_jax.data.chat import codec
from agentrl_jax.data.chat.tokenizer import train_tokenizer
from agentrl_jax.data.packing import Rows, pack
from agentrl_jax.data.records import (
  EpisodeSpec,
  Task,
  Tool,
  Trajectory,
  message_from_json,
  seed_of,
)
from agentrl_jax.env.interface import Environment
from agentrl_jax.errors import CheckpointError, EnvironmentFault
from agentrl_jax.files import write_whole
from launch.config.chat import codec_of
from launch.config.settings import Settings
from launch.run.environments import loaded_environments, task_stream

_log = logging.getLogger(__name__)

CHUNK = 512  # demonstrations that are played and packed together


def make_tokenizer(
  settings: Settings,
  *,
  num_texts: int,
  vocab_size: int,
  whole_tokens: Sequence[str],
  whole_lines: int,
  spaces_apart: bool,
) -> Tokenizer:
  """Trains a tokenizer on the texts of experts' episodes."""
  with loaded_environments(settings.environments) as environments:
    player = ExpertTextPlayer(
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
    spaces_apart=spaces_apart,
  )


def demonstrate(
  settings: Settings,
  run: pathlib.Path,
  num_demonstrations: int,
  on_progress: Callable[[int], None],
) -> Rows:
  """Plays and packs demonstrations on all cores, in the chat of the run.

  `on_progress` is called with the number of demonstrations so far.
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
  """Writes packed rows, completely or not at all."""
  content = io.BytesIO()
  np.savez_compressed(content, **rows.arrays())
  write_whole(path, content.getvalue())


def load_rows(path: pathlib.Path, content: bytes | None = None) -> Rows:
  """Reads packed rows from a file, or from the content of one."""
  try:
    content = path.read_bytes() if content is None else content
    with np.load(io.BytesIO(content)) as found:
      return Rows(**found)
  except (OSError, ValueError, TypeError, zipfile.BadZipFile) as error:
    raise CheckpointError(
      f"{path} cannot be read as demonstrations: {error}. Remove it, and it "
      "is made again"
    ) from error


def _pack_chunk(
  settings: Settings, run: pathlib.Path, start: int, number: int
) -> Rows:
  """Plays and packs one process's share."""
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
  monitor = Monitor()
  played = [
    await play_with_retries(
      EpisodeSpec(
        task=stream.at(position),
        group_id=f"demonstration-{position}",
        attempt=0,
        seed=seed_of(settings.seed, "demonstration", position),
      ),
      player,
      settings.retry,
      monitor,
    )
    for position in range(start, start + number)
  ]
  kept = [trajectory for trajectory in played if trajectory is not None]
  if len(kept) < number:
    lost = f"{number - len(kept)} of {number} demonstrations were lost"
    if not kept:
      raise EnvironmentFault(f"{lost}: {monitor.latest_faults()}")
    _log.warning("%s and are left out: %s", lost, monitor.latest_faults())
  return kept


async def _tools(
  environments: Mapping[str, Environment], tasks: Sequence[Task]
) -> dict[str, tuple[Tool, ...]]:
  tools = {}
  for task in {task.name: task for task in tasks}.values():
    with environments_own(task.name, "open or reset"):
      async with environments[task.name].open(task, seed=0) as session:
        await session.reset()
        tools[task.name] = session.tools
  return tools


def _text(trajectory: Trajectory, tools: Sequence[Tool]) -> str:
  """Renders the conversation as the policy will read and write it."""
  messages = [message_from_json(m) for m in trajectory.transcript]
  roles = [message.role for message in messages]
  first = roles.index("assistant") if "assistant" in roles else len(roles)
  start = codec.CompactTemplate().start(messages[:first], tools)
  return start + codec.render_messages(messages[first:])


def _mistakes(settings: Settings) -> dict[str, Mapping[str, float]]:
  return {name: s.mistakes for name, s in settings.environments.items()}


def _join(parts: Sequence[Rows]) -> Rows:
  arrays = [part.arrays() for part in parts]
  joined: dict[str, Any] = {
    name: np.concatenate([x[name] for x in arrays]) for name in arrays[0]
  }
  return Rows(**joined)


def shuffled(rows: Rows, *, seed: int, epochs: int) -> Iterator[np.ndarray]:
  """Yields row numbers, all of them once per epoch, each in another order."""
  for epoch in range(epochs):
    rng = np.random.default_rng([seed, epoch])
    yield rng.permutation(len(rows.token))
