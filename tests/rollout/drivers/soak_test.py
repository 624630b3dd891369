"""Nothing is left behind after random requests, cancellations and swaps."""

import collections
import concurrent.futures
import contextlib
import dataclasses
import gc
import random
import threading

import jax
import numpy as np
import pytest
from absl import logging
from absl.testing import parameterized

from agentrl_jax.errors import GrammarFault, ServerFull
from agentrl_jax.rollout.api import Completion, SamplingParams
from agentrl_jax.rollout.drivers.driver import LocalDriver
from tests.rollout import small, small_grammars
from tests.rollout.drivers.contract import DRIVERS, FEW_PAGES, WAIT_S, driver_on

ENGINES = {
  "pages for all slots": dict(slots=(3, 2)),
  "few pages": dict(slots=(3, 2), page_size=8, cache_tokens=(120, 104)),
  "as in the contract": FEW_PAGES,  # whose programs other tests compile, too
}
SOAKED = ("pages for all slots", "few pages")


class SoakTest(parameterized.TestCase):
  def test_nothing_is_left_of_a_few_requests(self):
    driver = self.driver_of("local", "as in the contract")
    self.addCleanup(driver.close)
    for one in Soak(driver, 3).run(12):
      self.assertTrue(one.future.done())
    self.check_nothing_is_left(driver, "local")

  @parameterized.product(driver=DRIVERS, engine=SOAKED)
  @pytest.mark.slow
  def test_hundreds_of_requests(self, driver, engine):
    self.soak(driver, engine, number=120, checked=8, seed=1)

  @parameterized.product(driver=DRIVERS, engine=SOAKED)
  @pytest.mark.full
  def test_ten_thousand_requests(self, driver, engine):
    self.soak(driver, engine, number=2500, checked=40, seed=2)

  def soak(self, kind, engine, *, number, checked, seed):
    logging.info("seed %d: %d requests, %s, %s", seed, number, kind, engine)
    threads = set(threading.enumerate())
    driver = self.driver_of(kind, engine)
    try:
      running = Soak(driver, seed)
      asked = running.run(number // 5)  # everything is compiled after these
      before = live_bytes()
      asked = running.run(number - number // 5)
      self.check_all_ended(running, asked, number)
      self.check_nothing_is_left(driver, kind)
      self.assertLess(live_bytes(), before + 200_000, "arrays pile up")
    finally:
      driver.close()
    self.assertEqual(set(threading.enumerate()), threads)
    self.check_answers(asked, checked)

  def driver_of(self, kind, engine):
    # Policy slot i serves the weights of seed (10 + i) % SEEDS, as step 20 + i.
    engine = small.engine_of(
      (20 % SEEDS, 19 % SEEDS),
      grammars=small_grammars.grammars(),
      **ENGINES[engine],
    )
    for policy_slot, step in enumerate((20, 19)):
      engine.versions.publish(
        small.params(step % SEEDS), step, policy_slot=policy_slot
      )
    return driver_on(kind, engine, max_waiting=MAX_WAITING)

  def check_all_ended(self, running, asked, number):
    logging.info("%s", dict(running.counts))
    self.assertLen(asked, number)
    for one in asked:
      self.assertTrue(one.future.done())
    for event in (
      "answered",
      "cancelled meanwhile",
      "cancelled at once",
      "full",
      "swapped",
      "continued",
      "streamed",
      "constrained",
      "dead ends",
    ):
      self.assertGreater(running.counts[event], 0, event)

  def check_nothing_is_left(self, driver, kind):
    if kind == "local":
      driver.run_until_idle()
    # As many requests as can be inside at once are still answered.
    probes = [
      driver.submit([1], SamplingParams(policy_slot=policy_slot, max_tokens=2))
      for policy_slot, slots in enumerate(driver.engine.config.slots)
      for _ in range(2 * slots)
    ]
    if kind == "local":
      driver.run_until_idle()
    for probe in probes:
      self.assertLen(probe.result(WAIT_S).sampled, 2)
    stats = driver.engine.stats()
    self.assertEqual((stats.num_active, stats.num_pending), ((0, 0), (0, 0)))
    self.assertEqual(driver.num_inside, (0, 0))
    self.assertEqual(driver.num_waiting, (0, 0))
    self.assertTrue(driver.engine.is_idle)
    driver.engine.check_invariants()

  def check_answers(self, asked, number):
    """Compares some answers with those of an engine without other requests."""
    answered = [
      one
      for one in asked
      if not one.future.cancelled() and one.future.exception(0) is None
    ]
    for one in answered:
      self.check_shape(one)
    whole = [
      one for one in answered if len(set(one.future.result(0).version)) == 1
    ]
    engines = {}
    for one in whole[:: max(1, len(whole) // number)]:
      answer = one.future.result(0)
      seed = int(answer.version[0]) % SEEDS
      if seed not in engines:
        engines[seed] = LocalDriver(
          small.engine_of((seed, seed), grammars=small_grammars.grammars())
        )
      engines[seed].engine.reset()
      future = engines[seed].submit(one.prompt, one.spec)
      engines[seed].run_until_idle()
      small.assert_same(answer, future.result(0), exact=("sampled",))
    for engine in engines.values():
      engine.close()

  def check_shape(self, one):
    answer, spec = one.future.result(0), one.spec
    if spec.grammar:
      small_grammars.grammars().masks(spec.grammar, answer.sampled)  # raises
    self.assertEqual(answer.policy_slot, spec.policy_slot)
    self.assertBetween(len(answer.sampled), 1, spec.max_tokens)
    stops = np.isin(answer.sampled, spec.stop_tokens)
    self.assertFalse(stops[:-1].any())
    if len(answer.sampled) < spec.max_tokens:
      self.assertTrue(stops[-1])
    self.assertTrue(np.all(np.diff(answer.version) >= 0))
    if one.chunks:
      streamed = np.concatenate([chunk.sampled for chunk in one.chunks])
      np.testing.assert_array_equal(streamed, answer.sampled)


SEEDS = 3  # of weights: the version of step n has those of seed n % SEEDS
MAX_WAITING = 6
CONVERSATIONS = 9
GRAMMARS = (*small_grammars.GRAMMARS.values(), small_grammars.DEAD_END)


@dataclasses.dataclass(eq=False)
class Asked:
  """A request, the chunks of its listener, and its future."""

  prompt: np.ndarray
  spec: SamplingParams
  conversation: int
  chunks: list[Completion] = dataclasses.field(default_factory=list)
  future: object = None


class Soak:
  """Sends seeded random requests to a driver, and counts events."""

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
    """Submits requests; returns all of them, answered or cancelled."""
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
    listener = asked.chunks.append if self._rng.random() < 0.3 else None
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
      SamplingParams(
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
    """Repeats `work` in another thread until the context ends."""
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
    """Cancels about one open request in seven, in any state."""
    running = [one for one in list(self._open) if not one.future.done()]
    share = self.counts["cancelled meanwhile"] / max(len(self._ended), 1)
    if running and share < 0.15 and self._chance.random() < 0.3:
      future = self._chance.choice(running).future
      self.counts["cancelled meanwhile"] += future.cancel()
    return False

  def _swap(self) -> bool:
    """Publishes other weights to a policy slot every few dozen answers."""
    if len(self._ended) >= 30 * (self.counts["swapped"] + 1):
      self.counts["swapped"] += 1
      self._step += 1
      self.driver.engine.versions.publish(
        small.params(self._step % SEEDS),
        self._step,
        policy_slot=self.counts["swapped"] % 2,
      )
    return False


def live_bytes() -> int:
  """Returns the size of all live arrays on the devices."""
  gc.collect()
  return sum(array.nbytes for array in jax.live_arrays())
