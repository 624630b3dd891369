"""The rollout engine: decodes many requests at once, with several versions.

A driver moves requests through it: `check` and `admit` from any thread, then
`step` to launch work and `read` to store its tokens, in the same order. `step`
and `read` may run in two threads, so that the host prepares a step while the
device computes another. `rollout.drivers` connects the engine to asyncio and to
JetStream.
"""

import collections
import dataclasses
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Sharding

from agentrl_jax.data.grammar.grammars import Grammars, GrammarState
from agentrl_jax.errors import (
  CheckpointError,
  ConfigError,
  DeadlineExceeded,
  GeneratorFault,
  PromptTooLong,
)
from agentrl_jax.model.policy import Policy
from agentrl_jax.rollout.api import (
  MAX_BIASES,
  MAX_TOP,
  Completion,
  EngineConfig,
  Request,
  SamplingParams,
)
from agentrl_jax.rollout.engine.decoder import DecodeCall, Params, Published
from agentrl_jax.rollout.engine.scheduler import Scheduler

_COUNTS = (
  "sampled",
  "constrained",
  "drafted",
  "accepted",
  "prefilled",
  "reused",
  "copied",
  "evicted",
  "preempted",
  "scheduled",
  "slot_steps",
)
_INT32_END = 2**31  # the state of slots is int32


@dataclasses.dataclass(frozen=True)
class EngineStats:
  """Counts since the start; tuples have one entry per policy slot.

  Times are wall-clock times from launching a step to reading its tokens. A step
  that prefills also decodes, and counts as prefill time as a whole.
  """

  num_sampled: tuple[int, ...]  # tokens
  num_constrained: tuple[int, ...]  # of these, sampled under a grammar
  num_drafted: tuple[int, ...]  # draft tokens that were computed
  num_accepted: tuple[int, ...]  # sampled tokens that drafts saved a step
  num_prefilled: tuple[int, ...]  # prompt tokens that were computed
  num_reused: tuple[int, ...]  # prompt tokens that were cached
  num_copied: tuple[int, ...]  # of these, copied from a page shared in part
  num_evicted: tuple[int, ...]  # pages of ended sequences that were taken
  num_preempted: tuple[int, ...]  # times that a request lost its pages
  num_scheduled: tuple[int, ...]  # requests that got a slot
  wait_s: tuple[float, ...]  # of these, sum from arrival to the slot
  num_slot_steps: tuple[int, ...]  # busy slots, summed over engine steps
  num_active: tuple[int, ...]  # slots with a request, now
  num_pending: tuple[int, ...]  # requests in the engine without a slot, now
  num_cancelled: int
  num_steps: int
  prefill_s: float
  decode_s: float


@dataclasses.dataclass(frozen=True, eq=False)
class StepResult:
  """The calls of a step, whose tokens may still be on the device."""

  calls: tuple[DecodeCall, ...]
  cancelled: tuple[Request, ...]  # have left the engine in this step
  has_prefill: bool
  launched_at: float  # on the monotonic clock

  def copy_to_host_async(self) -> None:
    """Starts the copies that `read` waits for."""
    for call in self.calls:
      call.copy_to_host_async()


class ServedWeights:
  """The published weights of each policy slot; slot 0 follows the learner.

  Publishing replaces a reference under a lock, and the engine reads the
  reference before each step. A running request goes on with the new weights,
  and each token is stamped with the version that it was sampled from. No array
  is moved here: cast, reshard and place the weights before publishing them.
  """

  def __init__(self, num_policy_slots: int):
    if num_policy_slots < 1:
      raise ConfigError(
        f"num_policy_slots={num_policy_slots} must be at least 1"
      )
    self._lock = threading.Lock()
    self._served: list[Published | None] = [None] * num_policy_slots
    self._num_published = 0

  @property
  def num_policy_slots(self) -> int:
    """Number of versions that can be served side by side."""
    return len(self._served)

  def publish(
    self, params: Params, version: int, *, policy_slot: int = 0
  ) -> None:
    """Makes `policy_slot` serve `params` from its next decode step on.

    Raises `CheckpointError`, and changes nothing, if the params differ in
    structure, shape or dtype from those of any policy slot, since the compiled
    programs fit only one of them.
    """
    self._check_policy_slot(policy_slot)
    served = next((p for p in self._served if p is not None), None)
    if served is not None:
      _check_like(params, served.params)
    placed = jax.tree.map(_placed, params)
    with self._lock:
      self._num_published += 1
      self._served[policy_slot] = Published(
        placed, version, self._num_published
      )

  def get(self, policy_slot: int) -> Published:
    """Returns the weights that `policy_slot` serves now."""
    self._check_policy_slot(policy_slot)
    with self._lock:
      served = self._served[policy_slot]
    if served is None:
      self.refuse_unserved(policy_slot)
      return self.get(policy_slot)  # weights were published in between
    return served

  def refuse_unserved(self, policy_slot: int) -> None:
    """Raises `GeneratorFault` if a policy slot has no weights yet."""
    if self._served[policy_slot] is None:
      raise GeneratorFault(
        f"policy slot {policy_slot} received a request before anything was "
        "published to it; call publish(params, version, policy_slot="
        f"{policy_slot}) first"
      )

  def served(self) -> tuple[Published | None, ...]:
    """Returns the weights of each policy slot; None for one without."""
    with self._lock:
      return tuple(self._served)

  def _check_policy_slot(self, policy_slot: int) -> None:
    if not 0 <= policy_slot < len(self._served):
      raise ConfigError(
        f"there is no policy slot {policy_slot}; policy slots are 0 to "
        f"{len(self._served) - 1}"
      )


class RolloutEngine:
  """Policy slots, each with a scheduler, slots, a cache and weights of its own.

  Programs are compiled once per shape and called with the params of any
  version. A version without requests costs memory but no time.
  """

  def __init__(
    self,
    policy: Policy,
    config: EngineConfig,
    versions: ServedWeights,
    *,
    cache_sharding: Sharding | None = None,
    grammars: Callable[[], Grammars | None] = lambda: None,
    max_unread: int = 2,
    unread_deadline_s: float = 300.0,
  ):
    """Makes an engine without requests.

    Args:
      policy: its params are those of `versions`.
      config: sizes and shapes.
      versions: the weights of each policy slot.
      cache_sharding: of keys and values; None: the default.
      grammars: called for each request that has a grammar.
      max_unread: steps that may be launched before their results are read.
      unread_deadline_s: `step` raises after waiting that long for `read`.
    """
    if versions.num_policy_slots != config.num_policy_slots:
      raise ConfigError(
        f"engine.slots={config.slots} names {config.num_policy_slots} policy "
        f"slots, the served weights have {versions.num_policy_slots}: give "
        "both the same number"
      )
    if policy.config.has_states and config.draft_tokens:
      raise ConfigError(
        f"engine.draft_tokens={config.draft_tokens} is not computed for a "
        "model with states: a wrong draft cannot be taken out of one. Set "
        "engine.draft_tokens=0"
      )
    self.config, self.versions = config, versions
    self.grammars, self._vocab_size = grammars, policy.config.vocab_size
    self._schedulers = [
      Scheduler(policy_slot, policy, config, cache_sharding, cancel=self.cancel)
      for policy_slot in range(config.num_policy_slots)
    ]
    self._lock = threading.Lock()
    self._serials = itertools.count()
    self._admitted: collections.deque[Request] = collections.deque()
    self._cancelled: collections.deque[Request] = collections.deque()
    self._pipeline = StepPipeline(max_unread, unread_deadline_s)
    self._step_s = {True: 0.0, False: 0.0}  # by whether the step prefilled
    self._num_steps = self._num_cancelled = 0
    self._last_read_at = 0.0

  def check(
    self, prompt: Sequence[int] | np.ndarray, sampling: SamplingParams
  ) -> Request:
    """Makes a request, or raises an error that says why it is refused."""
    tokens = np.asarray(prompt, np.int32)
    _check_spec(sampling, self.config.num_policy_slots)
    if sampling.is_shaped:
      _check_shaping(sampling, self._vocab_size)
    self.versions.refuse_unserved(sampling.policy_slot)
    if tokens.ndim != 1 or not tokens.size:
      raise ConfigError(
        f"a prompt is a row of at least one token, found shape {tokens.shape}"
      )
    if tokens.min() < 0 or tokens.max() >= self._vocab_size:
      raise ConfigError(
        f"prompt tokens from {tokens.min()} to {tokens.max()} were found; the "
        f"policy knows 0 to {self._vocab_size - 1}"
      )
    request = Request(tokens, sampling, next(self._serials))
    self._check_length(request)
    if sampling.grammar:
      request.grammar_state = _grammar_state(sampling, self.grammars())
    return request

  def admit(self, request: Request) -> None:
    """Adds a checked request; it leaves through `read`, or by `cancel`."""
    self._admitted.append(request)

  def cancel(self, request: Request) -> None:
    """Makes the next step free the slot of a request."""
    self._cancelled.append(request)

  @property
  def is_idle(self) -> bool:
    """True if a step would have nothing to do."""
    return not (
      self._admitted
      or self._cancelled
      or any(s.num_busy or s.num_waiting for s in self._schedulers)
    )

  def step(self) -> StepResult:
    """Launches one piece of work per policy slot that has any.

    Waits while the results of `max_unread` earlier steps have not been read,
    and while tokens sampled under a grammar have not.
    """
    self._pipeline.begin_step()
    launched_at = time.monotonic()
    with self._lock:
      cancelled = self._admit_and_cancel()
      num_prefilled = self._count("prefilled")
      calls = [
        call
        for policy_slot, scheduler in enumerate(self._schedulers)
        if scheduler.num_busy or scheduler.num_waiting
        for call in scheduler.step(self.versions.get(policy_slot))
      ]
      self._num_steps += 1
      has_prefill = self._count("prefilled") > num_prefilled
    self._pipeline.add_constrained(sum(c.is_constrained for c in calls))
    return StepResult(tuple(calls), tuple(cancelled), has_prefill, launched_at)

  def read(self, result: StepResult) -> list[tuple[Request, Completion]]:
    """Waits for the tokens of a step; returns the requests that are answered.

    Results are read in the order of their steps. A constrained call comes first
    in its policy slot, so its next masks are computed on the host while the
    device runs the calls after it.
    """
    answered = [pair for call in result.calls for pair in self._read(call)]
    with self._lock:
      now = time.monotonic()
      began = max(result.launched_at, self._last_read_at)
      self._step_s[result.has_prefill] += now - began
      self._last_read_at = now
    self._pipeline.end_step()
    return answered

  def reset(self) -> None:
    """Restores the state before the first request; the engine must be idle.

    Later answers and counts do not depend on earlier requests then.
    """
    with self._lock:
      for scheduler in self._schedulers:
        scheduler.reset()

  def check_invariants(self) -> None:
    """Raises `AssertionError` if a slot or a page was lost."""
    with self._lock:
      for scheduler in self._schedulers:
        scheduler.check()

  def close(self) -> None:
    """Makes each later `step` raise, and one that waits now."""
    self._pipeline.close()

  def stats(self) -> EngineStats:
    """Returns counts so far. Waits while a step is being launched."""
    with self._lock:
      counts = {
        f"num_{name}": tuple(s.counts[name] for s in self._schedulers)
        for name in _COUNTS
      }
      return EngineStats(
        **counts,
        wait_s=tuple(s.wait_s for s in self._schedulers),
        num_active=tuple(s.num_busy for s in self._schedulers),
        num_pending=tuple(s.num_waiting for s in self._schedulers),
        num_cancelled=self._num_cancelled,
        num_steps=self._num_steps,
        prefill_s=self._step_s[True],
        decode_s=self._step_s[False],
      )

  def _check_length(self, request: Request) -> None:
    config, policy_slot = self.config, request.sampling.policy_slot
    in_pages = config.num_pages(policy_slot) * config.tokens_per_page
    if request.max_length > min(config.context, in_pages):
      raise PromptTooLong(
        f"{len(request.prompt)} prompt tokens and max_tokens="
        f"{request.sampling.max_tokens} make {request.max_length}; engine."
        f"context={config.context} is the limit, and all pages of policy slot "
        f"{policy_slot} hold {in_pages} (engine.cache_tokens)"
      )

  def _read(self, call: DecodeCall) -> list[tuple[Request, Completion]]:
    call = call.to_host()
    with self._lock:
      answered = self._schedulers[call.policy_slot].read(call)
    if call.is_constrained:
      self._pipeline.end_constrained()
    return answered

  def _admit_and_cancel(self) -> list[Request]:
    """Passes requests on to schedulers; returns those that were cancelled."""
    cancelled = []
    while self._admitted:
      request = self._admitted.popleft()
      if request.future.cancelled():
        cancelled.append(request)
      else:
        self._schedulers[request.sampling.policy_slot].admit(request)
    while self._cancelled:
      request = self._cancelled.popleft()
      if self._schedulers[request.sampling.policy_slot].cancel(request):
        cancelled.append(request)
    self._num_cancelled += len(cancelled)
    return cancelled

  def _count(self, name: str) -> int:
    return sum(s.counts[name] for s in self._schedulers)


def _placed(leaf: Any) -> Any:
  """Returns an array of one device as one that is bound to no mesh.

  Without this, a program is compiled once for params of a mesh of one device,
  and again for params that came without a mesh.
  """
  if not isinstance(leaf, jax.Array) or len(leaf.sharding.device_set) > 1:
    return leaf
  (device,) = leaf.sharding.device_set
  return jax.device_put(leaf, device)


def _check_like(params: Params, served: Params) -> None:
  new = dict(jax.tree_util.tree_leaves_with_path(params))
  expected = dict(jax.tree_util.tree_leaves_with_path(served))
  for path in expected.keys() ^ new.keys():
    problem = "is missing" if path in expected else "is not part of the policy"
    raise CheckpointError(f"leaf {jax.tree_util.keystr(path)} {problem}")
  for path, leaf in expected.items():
    if (new[path].shape, new[path].dtype) != (leaf.shape, leaf.dtype):
      raise CheckpointError(
        f"leaf {jax.tree_util.keystr(path)} is {new[path].dtype}"
        f"{list(new[path].shape)}; the compiled programs take "
        f"{leaf.dtype}{list(leaf.shape)}"
      )


class StepPipeline:
  """Limits how many engine steps may be launched before their results are read.

  - At most `max_unread` steps are launched and not read.
  - No step is launched while a constrained call is not read: its slots could
    not go on. Meanwhile the device runs the calls that follow it.
  """

  def __init__(self, max_unread: int, deadline_s: float):
    self._max_unread, self._deadline_s = max_unread, deadline_s
    self._changed = threading.Condition()
    self._num_steps = self._num_constrained = 0  # not read
    self._closed = False

  def begin_step(self) -> None:
    """Waits until a step may be launched.

    Raises `GeneratorFault` once closed.
    """
    with self._changed:
      if not self._changed.wait_for(self._may_begin, self._deadline_s):
        raise DeadlineExceeded(
          f"the engine waited {self._deadline_s} s for its results to be read; "
          "the thread that calls RolloutEngine.read has ended or hangs"
        )
      if self._closed:
        raise GeneratorFault("the engine was closed and takes no more steps")
      self._num_steps += 1

  def add_constrained(self, num_calls: int) -> None:
    """Adds constrained calls that have to be read before the next step."""
    with self._changed:
      self._num_constrained += num_calls

  def end_constrained(self) -> None:
    """Marks one constrained call as read."""
    with self._changed:
      self._num_constrained -= 1
      self._changed.notify_all()

  def end_step(self) -> None:
    """Marks a step as read."""
    with self._changed:
      self._num_steps -= 1
      self._changed.notify_all()

  def close(self) -> None:
    """Wakes whoever waits, and refuses all further steps."""
    with self._changed:
      self._closed = True
      self._changed.notify_all()

  def _may_begin(self) -> bool:
    has_room = self._num_steps < self._max_unread and not self._num_constrained
    return self._closed or has_room


def _grammar_state(
  sampling: SamplingParams, grammars: Grammars | None
) -> GrammarState:
  if grammars is None:
    raise ConfigError(
      "the request has a grammar, and this engine knows no tokenizer to read "
      "it with: start the engine where the run's chat template is, or send "
      "requests without a grammar"
    )
  if missing := set(grammars.stop_tokens) - set(sampling.stop_tokens):
    raise ConfigError(
      f"stop_tokens={sampling.stop_tokens} and a grammar that may end by "
      f"{grammars.stop_tokens}: add {sorted(missing)}, or such an answer would "
      "go on after its end"
    )
  return grammars.begin(sampling.grammar)


def _check_shaping(sampling: SamplingParams, vocab_size: int) -> None:
  for name in ("frequency_penalty", "presence_penalty"):
    if not -2 <= getattr(sampling, name) <= 2:
      raise ConfigError(
        f"{name}={getattr(sampling, name)} must be a number from -2 to 2"
      )
  if not 0 <= sampling.num_top <= MAX_TOP:
    raise ConfigError(f"num_top={sampling.num_top} must be 0 to {MAX_TOP}")
  if len(dict(sampling.logit_bias)) != len(sampling.logit_bias) or (
    len(sampling.logit_bias) > MAX_BIASES
  ):
    raise ConfigError(
      f"logit_bias has {len(sampling.logit_bias)} entries; a request can have "
      f"up to {MAX_BIASES}, one per token"
    )
  for token, bias in sampling.logit_bias:
    if not 0 <= token < vocab_size or not -100 <= bias <= 100:
      raise ConfigError(
        f"logit_bias has {bias} for token {token}; the policy knows tokens 0 "
        f"to {vocab_size - 1}, and a bias is a number from -100 to 100"
      )


def _check_spec(sampling: SamplingParams, num_policy_slots: int) -> None:
  allowed = {
    "policy_slot": (
      0 <= sampling.policy_slot < num_policy_slots,
      f"0 to {num_policy_slots - 1}",
    ),
    "temperature": (0 <= sampling.temperature < np.inf, "0 (greedy) or more"),
    "top_k": (0 <= sampling.top_k < _INT32_END, "0 (all) to 2^31 - 1"),
    # A much smaller float32 would be 0 and leave no token.
    "top_p": (1e-9 <= sampling.top_p <= 1, "1e-9 to 1 (all)"),
    "min_p": (0 <= sampling.min_p <= 1, "0 (all) to 1"),
    "max_tokens": (sampling.max_tokens >= 1, "1 or more"),
    "seed": (isinstance(sampling.seed, int | np.integer), "an integer"),
    "stop_tokens": (
      max(sampling.stop_tokens, default=0) < _INT32_END,
      "ids below 2^31",
    ),
  }
  for name, (is_allowed, allowed_values) in allowed.items():
    if not is_allowed:
      raise ConfigError(
        f"{name}={getattr(sampling, name)} must be {allowed_values}"
      )
