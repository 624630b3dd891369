"""Decodes many requests at once, under several versions of the weights.

A driver moves requests through it: `check` and `admit` from any thread, then
`step` to launch work and `read` to take the tokens in, in the same order. Step
and read may run in two threads, so that the host prepares one piece of work
while the device is busy with another.

The engine knows nothing of asyncio, HTTP or JetStream; `rollout.drivers` brings
it to them.
"""

import collections
import dataclasses
import itertools
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np

from agentrl_jax.data.grammar.grammars import Grammars, GrammarState
from agentrl_jax.errors import (
  ConfigError,
  PromptTooLong,
)
from agentrl_jax.model.policy import Policy
from agentrl_jax.rollout.api import MAX_BIASES, MAX_TOP, Answer, SamplingSpec
from agentrl_jax.rollout.engine.placement import Place
from agentrl_jax.rollout.engine.request import Request
from agentrl_jax.rollout.engine.scheduler import Part, Scheduler
from agentrl_jax.rollout.engine.stats import EngineStats
from agentrl_jax.rollout.engine.step_pipeline import StepPipeline
from agentrl_jax.rollout.engine.weights import ServedWeights
from agentrl_jax.rollout.settings import EngineConfig

_COUNTED = (
  "sampled",
  "constrained",
  "prefilled",
  "reused",
  "copied",
  "restored",
  "stored",
  "store_failures",
  "evicted",
  "seated",
  "slot_steps",
)
_TOO_LARGE = 2**31  # for what slots keep in int32


@dataclasses.dataclass(frozen=True, eq=False)
class StepResult:
  """What a step launched. Tokens may still be on their way from the device."""

  parts: tuple[Part, ...]
  cancelled: tuple[Request, ...]  # have left the engine with this step
  fed_prompts: bool
  launched_at: float  # on the monotonic clock

  def copy_to_host_async(self) -> None:
    """Starts the copies that `read` will wait for."""
    for part in self.parts:
      part.record.copy_to_host_async()


class RolloutEngine:
  """K policy slots, each with slots, cache and weights of its own.

  There is one compiled program per shape, called with one version's params or
  another's. A version that nobody asks costs memory and no time.
  """

  def __init__(
    self,
    policy: Policy,
    config: EngineConfig,
    versions: ServedWeights,
    *,
    places: Sequence[Place] | None = None,
    grammars: Callable[[], Grammars | None] = lambda: None,
    max_unread: int = 2,
    unread_deadline_s: float = 300.0,
  ):
    """`places` has one entry per policy slot; without, all are where params
    are.

    `grammars` is asked when a request has a grammar, each time.
    """
    if versions.num_policy_slots != config.num_policy_slots:
      raise ConfigError(
        f"engine.slots={config.slots} names {config.num_policy_slots} policy "
        f"slots, "
        f"the version store has {versions.num_policy_slots}: give both the same"
      )
    self.config, self.versions = config, versions
    self.grammars, self._vocab_size = grammars, policy.config.vocab_size
    places = places or (Place(policy),) * config.num_policy_slots
    self._blocks = [
      Scheduler(
        policy_slot, place.policy, config, place.cache, give_up=self.cancel
      )
      for policy_slot, place in zip(
        range(config.num_policy_slots), places, strict=True
      )
    ]
    self._lock = threading.Lock()
    self._serials = itertools.count()
    self._inbox: collections.deque[Request] = collections.deque()
    self._cancelled: collections.deque[Request] = collections.deque()
    self._ahead = StepPipeline(max_unread, unread_deadline_s)
    self._seconds = {True: 0.0, False: 0.0}  # by whether prompts were fed
    self._num_steps = self._num_cancelled = 0
    self._last_read_at = 0.0

  def check(
    self, prompt: Sequence[int] | np.ndarray, spec: SamplingSpec
  ) -> Request:
    """A request that the engine can answer, or an error that says why not."""
    tokens = np.asarray(prompt, np.int32)
    _check_spec(spec, self.config.num_policy_slots)
    if spec.is_shaped:
      _check_shaping(spec, self._vocab_size)
    self.versions.refuse_unserved(spec.policy_slot)
    if tokens.ndim != 1 or not tokens.size:
      raise ConfigError(
        f"a prompt is a row of at least one token, found shape {tokens.shape}"
      )
    if tokens.min() < 0 or tokens.max() >= self._vocab_size:
      raise ConfigError(
        f"prompt tokens from {tokens.min()} to {tokens.max()} were found; the "
        f"policy knows 0 to {self._vocab_size - 1}"
      )
    request = Request(tokens, spec, next(self._serials))
    if request.end > self.config.context:
      raise PromptTooLong(
        f"{len(tokens)} prompt tokens and max_tokens={spec.max_tokens} make "
        f"{request.end}; engine.context={self.config.context} is the limit"
      )
    if spec.grammar:
      request.course = _course(spec, self.grammars())
    return request

  def admit(self, request: Request) -> None:
    """Takes a checked request in; it leaves through `read`, or by `cancel`."""
    self._inbox.append(request)

  def cancel(self, request: Request) -> None:
    """Lets the next step free the request's slot."""
    self._cancelled.append(request)

  @property
  def is_idle(self) -> bool:
    """Whether a step would find nothing to do."""
    return not (
      self._inbox
      or self._cancelled
      or any(block.num_busy or block.num_pending for block in self._blocks)
    )

  def step(self) -> StepResult:
    """Launches one piece of work per policy slot that has any.

    Waits while `max_unread` earlier results have not been read, and while
    tokens sampled under a grammar have not.
    """
    self._ahead.step()
    launched_at = time.monotonic()
    with self._lock:
      cancelled = self._drain()
      fed = self._count("prefilled")
      parts = [
        part
        for policy_slot, block in enumerate(self._blocks)
        if block.num_busy or block.num_pending
        for part in block.step(self.versions.get(policy_slot))
      ]
      self._num_steps += 1
      fed_prompts = self._count("prefilled") > fed
    self._ahead.launched(sum(part.is_bound for part in parts))
    return StepResult(tuple(parts), tuple(cancelled), fed_prompts, launched_at)

  def read(self, result: StepResult) -> list[tuple[Request, Answer]]:
    """Waits for a step's tokens; the requests that are now answered.

    Results are read in the order of their steps, and in each what comes first
    first: masks are made while the device is at the calls after it.
    """
    answered = [pair for part in result.parts for pair in self._read(part)]
    with self._lock:
      now = time.monotonic()
      began = max(result.launched_at, self._last_read_at)
      self._seconds[result.fed_prompts] += now - began
      self._last_read_at = now
    self._ahead.read_step()
    return answered

  def forget(self) -> None:
    """Back to the state of an engine that has answered nothing yet.

    Only while it is idle: what comes next does not depend on what came before.
    """
    with self._lock:
      for block in self._blocks:
        block.forget()

  def check_books(self) -> None:
    """Raises `AssertionError` if a slot or a block of the store was lost."""
    with self._lock:
      for block in self._blocks:
        block.check()

  def close(self) -> None:
    """Makes this and every later `step` raise, also one that waits now."""
    self._ahead.close()

  def stats(self) -> EngineStats:
    """Counts so far. Waits for a step that is being launched."""
    with self._lock:
      counted = {
        f"num_{name}": tuple(block.counts[name] for block in self._blocks)
        for name in _COUNTED
      }
      return EngineStats(
        **counted,
        wait_s=tuple(block.wait_s for block in self._blocks),
        num_active=tuple(block.num_busy for block in self._blocks),
        num_pending=tuple(block.num_pending for block in self._blocks),
        num_cancelled=self._num_cancelled,
        num_steps=self._num_steps,
        prefill_s=self._seconds[True],
        decode_s=self._seconds[False],
      )

  def _read(self, part: Part) -> list[tuple[Request, Answer]]:
    part = dataclasses.replace(part, record=np.asarray(part.record))
    with self._lock:
      answered = self._blocks[part.policy_slot].read(part)
    if part.is_bound:
      self._ahead.read_call()
    return answered

  def _drain(self) -> list[Request]:
    """Takes in what other threads left; who was cancelled and is now out."""
    left = []
    while self._inbox:
      request = self._inbox.popleft()
      if request.future.cancelled():
        left.append(request)
      else:
        self._blocks[request.spec.policy_slot].admit(request)
    while self._cancelled:
      request = self._cancelled.popleft()
      if self._blocks[request.spec.policy_slot].cancel(request):
        left.append(request)
    self._num_cancelled += len(left)
    return left

  def _count(self, name: str) -> int:
    return sum(block.counts[name] for block in self._blocks)


def _course(spec: SamplingSpec, grammars: Grammars | None) -> GrammarState:
  """An answer's way through its grammar. `ConfigError` if there is none."""
  if grammars is None:
    raise ConfigError(
      "an answer is to follow a grammar, and this engine knows no tokenizer to "
      "read it by: start it where the run's chat template is, or ask for "
      "answers without a grammar"
    )
  if missing := set(grammars.stop_tokens) - set(spec.stop_tokens):
    raise ConfigError(
      f"stop_tokens={spec.stop_tokens} and a grammar that may end by "
      f"{grammars.stop_tokens}: add {sorted(missing)}, or such an answer would "
      "go on after its end"
    )
  return grammars.begin(spec.grammar)


def _check_shaping(spec: SamplingSpec, vocab_size: int) -> None:
  for name in ("frequency_penalty", "presence_penalty"):
    if not -2 <= getattr(spec, name) <= 2:
      raise ConfigError(
        f"{name}={getattr(spec, name)} must be a number from -2 to 2"
      )
  if not 0 <= spec.num_top <= MAX_TOP:
    raise ConfigError(f"num_top={spec.num_top} must be 0 to {MAX_TOP}")
  if len(dict(spec.logit_bias)) != len(spec.logit_bias) or (
    len(spec.logit_bias) > MAX_BIASES
  ):
    raise ConfigError(
      f"logit_bias has {len(spec.logit_bias)} entries; up to {MAX_BIASES}, one "
      "per token, are what a request can have"
    )
  for token, bias in spec.logit_bias:
    if not 0 <= token < vocab_size or not -100 <= bias <= 100:
      raise ConfigError(
        f"logit_bias has {bias} for token {token}; the policy knows tokens 0 "
        f"to {vocab_size - 1}, and a bias is a number from -100 to 100"
      )


def _check_spec(spec: SamplingSpec, num_policy_slots: int) -> None:
  allowed = {
    "policy_slot": (
      0 <= spec.policy_slot < num_policy_slots,
      f"0 to {num_policy_slots - 1}",
    ),
    "temperature": (0 <= spec.temperature < np.inf, "0 (greedy) or more"),
    "top_k": (0 <= spec.top_k < _TOO_LARGE, "0 (all) to 2^31 - 1"),
    # In float32 much less would be 0, and leave no token.
    "top_p": (1e-9 <= spec.top_p <= 1, "1e-9 to 1 (all)"),
    "min_p": (0 <= spec.min_p <= 1, "0 (all) to 1"),
    "max_tokens": (spec.max_tokens >= 1, "1 or more"),
    "seed": (isinstance(spec.seed, int | np.integer), "an integer"),
    "stop_tokens": (
      max(spec.stop_tokens, default=0) < _TOO_LARGE,
      "ids below 2^31",
    ),
  }
  for name, (is_allowed, what) in allowed.items():
    if not is_allowed:
      raise ConfigError(f"{name}={getattr(spec, name)} must be {what}")
