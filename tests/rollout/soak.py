"""Random requests of every kind, with cancels and swaps from other threads."""

import collections
import concurrent.futures
import contextlib
import dataclasses
import gc
import random
import threading

import jax
import numpy as np

from agentrl_jax.errors import GrammarFault, ServerFull
from agentrl_jax.rollout.api import Answer, SamplingSpec
from agentrl_jax.rollout.drivers.local import LocalDriver
from tests.rollout import small, small_grammars

WAIT_S = 120.0
SEEDS = 3  # of weights: the version of step n has those of seed n % SEEDS
MAX_WAITING = 6
CONVERSATIONS = 9
GRAMMARS = (*small_grammars.GRAMMARS.values(), small_grammars.DEAD_END)


@dataclasses.dataclass(eq=False)
class Asked:
  """A request, what its listener heard, and where its answer will be."""

  prompt: np.ndarray
  spec: SamplingSpec
  conversation: int
  pieces: list[Answer] = dataclasses.field(default_factory=list)
  future: object = None


class Soak:
  """One seeded run against a driver; `counts` tells what happened."""

  def __init__(self, driver, seed: int):
    self.driver, self._rng = driver, random.Random(seed)
    self._chance = random.Random(seed + 1)  # of the thread that cancels
    self.counts: collections.Counter[str] = collections.Counter()
    self._open: list[Asked] = []
    self._ended: list[Asked] = []
    self._prompts: dict[int, np.ndarray] = {}
    self._step = 20  # of the newest version
    self.failures: list[BaseException] = []

  def run(self, number: int) -> list[Asked]:
    """Asks so many; returns all of them, answered or cancelled."""
    with contextlib.ExitStack() as stack:
      for name, work in (("cancels", self._cancel), ("swaps", self._swap)):
        stack.enter_context(self._beside(name, work))
      if isinstance(self.driver, LocalDriver):
        stack.enter_context(self._beside("steps", self.driver.step))
      for i in range(number):
        self._ask(i)
        self._collect(limit=24)
      self._collect(limit=0)
    if self.failures:
      raise self.failures[0]
    return self._ended

  def _ask(self, i: int) -> None:
    asked = self._request(i)
    listener = asked.pieces.append if self._rng.random() < 0.3 else None
    while True:
      try:
        asked.future = self.driver.submit(asked.prompt, asked.spec, listener)
      except ServerFull:
        self.counts["full"] += 1
        self._collect(limit=len(self._open) - 1)
      else:
        break
    if listener is not None:
      self.counts["streamed"] += 1
    self._open.append(asked)
    if self._rng.random() < 0.1:
      self.counts["cancelled at once"] += asked.future.cancel()

  def _request(self, i: int) -> Asked:
    rng = self._rng
    budget = rng.choice((1, 1, 2, 3, 5, 8, 13, 30))
    conversation = rng.randrange(CONVERSATIONS)
    prompt = self._prompts.pop(conversation, None)
    if prompt is None or len(prompt) + budget > small.CONTEXT:
      same_start = small.prompt_of(rng.randrange(4), rng.randrange(1, 40))
      tail = small.prompt_of(1000 + i, rng.randrange(0, 20))
      prompt = np.concatenate([same_start, tail])
    else:
      self.counts["continued"] += 1
    truncates = rng.random() < 0.3
    grammar = rng.choice(GRAMMARS) if rng.random() < 0.4 else ""
    stops = rng.sample(range(small.VOCAB), rng.randrange(4 if grammar else 5))
    return Asked(
      prompt,
      SamplingSpec(
        policy_slot=rng.randrange(2),
        temperature=rng.choice((0.0, 0.7, 1.0, 1.0, 1.4)),
        top_k=rng.choice((1, 5, 20)) if truncates else 0,
        top_p=rng.choice((0.5, 0.9)) if truncates else 1.0,
        min_p=rng.choice((0.0, 0.1)) if truncates else 0.0,
        max_tokens=budget,
        stop_tokens=(*stops, small_grammars.STOP) if grammar else tuple(stops),
        seed=rng.getrandbits(64),
        grammar=grammar,
      ),
      conversation,
    )

  def _collect(self, limit: int) -> None:
    """Waits until no more than `limit` requests are open, oldest first."""
    while len(self._open) > max(limit, 0):
      asked = self._open[0]
      if not asked.future.cancelled():
        with contextlib.suppress(concurrent.futures.CancelledError):
          self._take_in(asked)
      self.counts["cancelled"] += asked.future.cancelled()
      self._ended.append(self._open.pop(0))

  def _take_in(self, asked: Asked) -> None:
    try:
      answer = asked.future.result(WAIT_S)
    except GrammarFault:
      assert asked.spec.grammar == small_grammars.DEAD_END, asked.spec
      self.counts["dead ends"] += 1
      return
    self.counts["answered"] += 1
    self.counts["constrained"] += bool(asked.spec.grammar)
    longer = small.conversation(
      asked.prompt, answer, small.prompt_of(self._rng.randrange(50), 3)
    )
    if self._rng.random() < 0.7 and len(longer) < small.CONTEXT - 1:
      self._prompts[asked.conversation] = longer

  @contextlib.contextmanager
  def _beside(self, name, work):
    """Does `work` in another thread, over and over, until it is left."""
    over = threading.Event()

    def go_on():
      try:
        while not over.is_set():
          if not work():
            over.wait(0.001)
      except BaseException as error:  # noqa: BLE001 - raised by `run`
        self.failures.append(error)

    thread = threading.Thread(target=go_on, name=name)
    thread.start()
    try:
      yield
    finally:
      over.set()
      thread.join(WAIT_S)

  def _cancel(self) -> bool:
    """One open request in seven or so, whatever it is doing."""
    found = [one for one in list(self._open) if not one.future.done()]
    share = self.counts["cancelled meanwhile"] / max(len(self._ended), 1)
    if found and share < 0.15 and self._chance.random() < 0.3:
      future = self._chance.choice(found).future
      self.counts["cancelled meanwhile"] += future.cancel()
    return False

  def _swap(self) -> bool:
    """Other weights for a policy slot, every few dozen answers."""
    if len(self._ended) >= 30 * (self.counts["swapped"] + 1):
      self.counts["swapped"] += 1
      self._step += 1
      publish = self.driver.engine.versions.publish
      publish(
        self.counts["swapped"] % 2, small.params(self._step % SEEDS), self._step
      )
    return False


def live_bytes() -> int:
  """Of all arrays that are alive on the devices."""
  gc.collect()
  return sum(array.nbytes for array in jax.live_arrays())
