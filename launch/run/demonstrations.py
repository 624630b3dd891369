"""Makes demonstrations: plays experts, or reads chats from files.

The experts make mistakes on purpose, as often as the config says. Their
episodes train the tokenizer, then become packed rows for the warm start. Every
demonstration is a function of (seed, position), so processes share the work and
the result is the same for any number of them. Conversations of files become
rows likewise, and those that cannot be learned from are counted.
"""

import asyncio
import collections
import concurrent.futures
import dataclasses
import functools
import io
import itertools
import logging
import multiprocessing
import os
import pathlib
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from tokenizers import Tokenizer

from agentrl_jax.controller.episode import environments_own
from agentrl_jax.controller.groups.group import play_all
from agentrl_jax.controller.metrics import Monitor
from agentrl_jax.controller.player import ExpertPlayer, ExpertTextPlayer, Player
from agentrl_jax.data.chat import codec
from agentrl_jax.data.chat.conversations import (
  TOO_LONG,
  UNREADABLE,
  Unusable,
  demonstration,
  read_conversation,
)
from agentrl_jax.data.chat.tokenizer import train_tokenizer
from agentrl_jax.data.dataset_file import DatasetRow, files_of, read_rows
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
from agentrl_jax.errors import CheckpointError, ConfigError, EnvironmentFault
from agentrl_jax.files import write_whole
from launch.config.chat import codec_of
from launch.config.settings import Settings
from launch.run.environments import loaded_environments, task_stream

_log = logging.getLogger(__name__)

CHUNK = 512  # demonstrations that are played and packed together
CHATS_CHUNK = 2048  # likewise, of conversations that are read
_LOOK_S = 1.0  # between two looks at how many the processes have played
_counters: list[Any] = []  # of this process's pool: demonstrations so far
# Of chats: the share whose loss is measured, if there are so many.
HELD_OUT_SHARE, LEAST_TO_HOLD = 0.05, 100
HELD_OUT = -1  # `policy_slot` of its packed rows
T = TypeVar("T")


def make_tokenizer(
  settings: Settings,
  *,
  num_texts: int,
  vocab_size: int,
  whole_tokens: Sequence[str],
  whole_lines: int,
  on_progress: Callable[[int], None] = lambda done: None,
) -> Tokenizer:
  """Trains a tokenizer on the texts of experts' episodes.

  `on_progress` is called with the number of texts so far.
  """
  numbers = itertools.count(1)
  with loaded_environments(settings.environments) as environments:
    player = ExpertTextPlayer(
      environments=environments,
      max_turns=settings.episode.max_turns,
      mistakes=_mistakes(settings),
      waits=settings.waits,
    )
    played = asyncio.run(
      _play(
        settings,
        player,
        environments,
        range(num_texts),
        settings.evaluation.concurrency,
        lambda: on_progress(next(numbers)),
      )
    )
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

  `on_progress` is called with the number of demonstrations so far.
  """
  starts = range(0, num_demonstrations, CHUNK)
  num_processes = min(os.cpu_count() or 1, len(starts))
  jobs = [
    functools.partial(
      _pack_chunk,
      settings,
      run,
      start,
      min(CHUNK, num_demonstrations - start),
      max(settings.evaluation.concurrency // num_processes, 1),
    )
    for start in starts
  ]
  return _join(list(_on_all_cores(jobs, on_progress)))


def read_chats(
  settings: Settings,
  run: pathlib.Path,
  path: pathlib.Path,
  most: int,
  on_progress: Callable[[int], None],
) -> tuple[Rows, str]:
  """Packs the conversations of a file, or of a folder of files.

  Returns the packed rows, and a sentence about what they hold and what was left
  out. Rows of `policy_slot` `HELD_OUT` are to be measured, not learned from: a
  twentieth of `LEAST_TO_HOLD` conversations or more, by their first prompt.
  Raises `ConfigError` with the sentence if nothing is left.
  """
  read = (row for file in files_of(path) for row in read_rows(file))
  rows = list(itertools.islice(read, most))
  is_cut = next(read, None) is not None
  chunks = [
    rows[start : start + CHATS_CHUNK]
    for start in range(0, len(rows), CHATS_CHUNK)
  ]
  share = HELD_OUT_SHARE if len(rows) >= LEAST_TO_HOLD else 0.0
  jobs = [
    functools.partial(_pack_chats, settings, run, chunk, share)
    for chunk in chunks
  ]
  parts: list[Rows] = []
  tally = ChatTally()
  # One chunk is done before other processes would have started.
  results = (
    _on_all_cores(jobs, on_progress)
    if len(jobs) > 1
    else (job() for job in jobs)
  )
  for found, counted in results:
    tally.add(counted)
    parts += found
    on_progress(tally.num_read)
  sentence = f"{path}: {tally.sentence(settings.batch.row_length)}"
  if is_cut:
    sentence += (
      f"; only the first warm_start.num_demonstrations={most} are read"
    )
  if not tally.num_kept:
    raise ConfigError(f"{sentence}. There is nothing to learn from")
  return _join(parts), sentence


def count_chats(path: pathlib.Path, most: int) -> int:
  """Returns how many conversations `read_chats` reads, for its progress."""
  read = (row for file in files_of(path) for row in read_rows(file))
  return sum(1 for _ in itertools.islice(read, most))


@dataclasses.dataclass
class ChatTally:
  """Counts of conversations, and the first of each kind that is left out."""

  num_kept: int = 0
  left_out: collections.Counter[str] = dataclasses.field(
    default_factory=collections.Counter
  )
  first: dict[str, str] = dataclasses.field(default_factory=dict)

  @property
  def num_read(self) -> int:
    """Conversations that were read."""
    return self.num_kept + self.left_out.total()

  def leave_out(self, kind: str, where: str, detail: str) -> None:
    """Counts a conversation that cannot be learned from."""
    self.left_out[kind] += 1
    self.first.setdefault(kind, f"{where}: {detail:.200}")

  def add(self, other: "ChatTally") -> None:
    """Adds the counts of later rows."""
    self.num_kept += other.num_kept
    self.left_out += other.left_out
    self.first = other.first | self.first

  def sentence(self, row_length: int) -> str:
    """Says how many conversations are demonstrations, and why others not."""
    said = (
      f"{self.num_kept} of {self.num_read} conversations are demonstrations"
    )
    for kind, count in self.left_out.most_common():
      limit = f" for train.row_length={row_length}" if kind == TOO_LONG else ""
      said += f"; {count} {kind}{limit}, first {self.first[kind]}"
    return said


def _on_all_cores(
  jobs: Sequence[Callable[[], T]],
  on_progress: Callable[[int], None] = lambda done: None,
) -> Iterator[T]:
  """Yields the results of jobs in their order, from processes of their own.

  `on_progress` is called with how many demonstrations the jobs have played.
  """
  # A fork of a process with threads may hang; a spawned one starts clean.
  context = multiprocessing.get_context("spawn")
  counter = context.Value("q", 0)
  with concurrent.futures.ProcessPoolExecutor(
    max_workers=min(os.cpu_count() or 1, len(jobs)),
    mp_context=context,
    initializer=_count_in,
    initargs=(counter,),
  ) as pool:
    try:
      for running in [pool.submit(job) for job in jobs]:
        while not concurrent.futures.wait([running], timeout=_LOOK_S).done:
          on_progress(counter.value)
        yield running.result()
        on_progress(counter.value)
    finally:
      pool.shutdown(cancel_futures=True)  # of an error, nothing waits longer


def _count_in(counter: Any) -> None:
  _counters[:] = [counter]


def _count_one() -> None:
  for counter in _counters:
    with counter.get_lock():
      counter.value += 1


def _pack_chats(
  settings: Settings,
  run: pathlib.Path,
  rows: Sequence[DatasetRow],
  share: float,
) -> tuple[list[Rows], ChatTally]:
  """Packs one process's rows, of which a share is held out."""
  codec = codec_of(run, settings.chat)
  room, tally = settings.batch.row_length, ChatTally()
  kept: list[Trajectory] = []
  held: list[Trajectory] = []
  for number, row in enumerate(rows):
    _count_one()
    try:
      if row.problem:
        raise Unusable(UNREADABLE, row.problem)
      task = row.columns.get("task")
      if isinstance(task, dict) and task.get("split") == "test":
        raise Unusable("of the test", "its task is one of the test split")
      conversation = read_conversation(row.columns)
      read = demonstration(conversation, codec, room=room, number=number)
      prompt = zlib.crc32(read.turns[0].observation.tobytes())
      is_held = prompt < share * 2**32
      (held if is_held else kept).append(read)
      if is_held:
        tally.leave_out("held out", row.where, "its loss is measured instead")
    except Unusable as error:
      tally.leave_out(error.kind, row.where, str(error))
  tally.num_kept = len(kept)
  parts = [pack(each, row_length=room) for each in (kept, held) if each]
  if held:
    parts[-1].policy_slot[:] = HELD_OUT
  return parts, tally


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
  settings: Settings,
  run: pathlib.Path,
  start: int,
  number: int,
  concurrency: int,
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
    played = asyncio.run(
      _play(
        settings,
        player,
        environments,
        range(start, start + number),
        concurrency,
        _count_one,
      )
    )
  return pack(played, row_length=settings.batch.row_length)


async def _play(
  settings: Settings,
  player: Player,
  environments: Mapping[str, Environment],
  positions: range,
  concurrency: int,
  on_end: Callable[[], None],
) -> list[Trajectory]:
  """Plays the experts, `concurrency` at a time; returns them in order."""
  stream = task_stream(
    settings,
    environments,
    split="train",
    purpose="demonstrations",
    shuffle=False,
  )
  monitor = Monitor()
  specs = [
    EpisodeSpec(
      task=stream.at(position),
      group_id=f"demonstration-{position}",
      attempt=0,
      seed=seed_of(settings.seed, "demonstration", position),
    )
    for position in positions
  ]
  played = await play_all(
    specs,
    player,
    settings.retry,
    monitor,
    concurrency=concurrency,
    on_end=lambda _: on_end(),
  )
  kept = [trajectory for trajectory in played if trajectory is not None]
  if len(kept) < len(specs):
    lost = f"{len(specs) - len(kept)} of {len(specs)} demonstrations were lost"
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
