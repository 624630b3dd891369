"""From the groups of a batch to its lessons: all that comes before a gradient.

Attempts are judged against their siblings or by the critic, and against their
task, over the whole batch; only then are they packed and cut, so the cut
changes nothing. Log-probabilities of other policies than the one in training
are computed here, with the params as the batch finds them.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from agentrl_jax import losses
from agentrl_jax.data.answer_masks import AnswerMasks, answer_masks
from agentrl_jax.data.grammar import Grammars
from agentrl_jax.data.packing import Rows, pack
from agentrl_jax.data.trajectory import Group, Trajectory
from agentrl_jax.errors import NotFinite
from agentrl_jax.losses import TaskMoments
from agentrl_jax.model import sharding
from agentrl_jax.model.policy import Params, Policy
from agentrl_jax.train.advantages import (
  Attempts,
  advantages,
  counted_attempts,
  critic_advantages,
  make_attempts,
  pad_rows,
  place_rewards,
  require_finite,
)
from agentrl_jax.train.config import AdvantageConfig, LossConfig
from agentrl_jax.train.custom_trial import try_advantage
from agentrl_jax.train.metrics import answer_versions
from agentrl_jax.train.objective import (
  reward_kl_estimator,
  sequences_of,
  token_inputs,
)
from agentrl_jax.train.token_logprobs import (
  hidden_states,
  token_logprobs,
  token_values,
)
from agentrl_jax.train.train_batch import (
  BatchConfig,
  TrainBatch,
  add_fields,
  cut,
  on_mesh,
  whole_on_mesh,
)
from agentrl_jax.train.weights.reference import Reference

Report = dict[str, float]


@dataclasses.dataclass(frozen=True)
class _Idle:
  """Attempts that count in the mean and are not computed; K of them."""

  task_K: np.ndarray  # int
  num_tokens_K: np.ndarray  # int, trained on

  def rows(self, row_length: int) -> tuple[np.ndarray, np.ndarray]:
    """The tasks of their tokens in rows, and which entries are tokens."""
    task_X = np.repeat(self.task_K, self.num_tokens_K)
    num_rows = -(-len(task_X) // row_length)
    missing = num_rows * row_length - len(task_X)
    shape = (num_rows, row_length)
    mask_X = np.ones(len(task_X), bool)
    return (
      np.pad(task_X, (0, missing)).reshape(shape),
      np.pad(mask_X, (0, missing)).reshape(shape),
    )


class BatchBuilder:
  """Makes lessons of groups, and remembers tasks' running statistics."""

  def __init__(
    self,
    policy: Policy,
    *,
    loss: LossConfig,
    advantage: AdvantageConfig,
    batch: BatchConfig,
    task_ids: Mapping[str, int],
    temperature: float,
    reference: Reference | None = None,
    make_grammars: Callable[[], Grammars] | None = None,
  ):
    """`reference` is what the KL term pulls towards.

    `make_grammars` is called once there are answers that had to follow one.
    """
    if loss.kl_coefficient and reference is None:
      raise ValueError(
        f"loss.kl_coefficient={loss.kl_coefficient} pulls towards a reference, "
        "and none was given: pass one, or set the coefficient to 0"
      )
    try_advantage(advantage)
    self._loss, self._advantage, self._batch = loss, advantage, batch
    self._task_ids, self._reference = task_ids, reference
    self._make_grammars = make_grammars
    self._token_weights = TokenWeights(policy, loss, temperature=temperature)
    self._running = (
      losses.unseen_tasks(len(task_ids)) if advantage.task_decay else None
    )

    def logprobs(params: Params, lesson: TrainBatch) -> jax.Array:
      return token_logprobs(
        policy,
        params,
        lesson.batch,
        temperature=temperature,
        **loss.tiles,
      )[0]

    def costs(params: Params, lesson: TrainBatch) -> jax.Array:
      batch = lesson.batch
      log_ratio_BT = losses.log_ratio(
        batch.behavior_logprob, logprobs(params, lesson), batch.mask
      )
      return -losses.kl_penalised_reward(
        jnp.zeros(batch.mask.shape),
        log_ratio_BT,
        batch.mask,
        coefficient=loss.kl_coefficient,
        estimator=reward_kl_estimator(loss, batch.mask),
      )

    def values(params: Params, lesson: TrainBatch) -> jax.Array:
      hidden_BTD = hidden_states(policy, params, lesson.batch)
      return token_values(policy, params, lesson.batch, hidden_BTD)

    self._mesh = policy.mesh
    # What the host reads is whole in every process.
    whole = self._mesh and sharding.replicated(self._mesh)
    self._logprobs = jax.jit(logprobs)
    self._costs = jax.jit(costs, out_shardings=whole)
    self._values = jax.jit(values, out_shardings=whole)

  def lessons(
    self, groups: Sequence[Group], params: Params
  ) -> tuple[list[TrainBatch], Report]:
    """The micro-batches of one update and what the packing came to.

    The loss is a mean over the attempts that `advantage.keep` keeps, and over
    no others. Of these, attempts of advantage 0 are not computed where nothing
    but the advantage would give them a gradient: their weight stays in the
    denominator, so that loss and gradient are as if they had been computed.
    The list is empty if no attempt is kept: there is no update to make.
    """
    trajectories = [t for group in groups for t in group.trajectories]
    attempts = make_attempts(
      groups,
      self._task_ids,
      self._advantage,
      self._penalties(trajectories),
    )
    if self._advantage.uses_critic:
      lessons, report = self._by_critic(trajectories, attempts, params)
    else:
      lessons, report = self._by_siblings(trajectories, attempts)
    report["batch/trajectories"] = float(len(trajectories))
    return self._complete(lessons, params), report

  def snapshot(self) -> dict[str, Any]:
    """What a resumed run needs, as JSON values."""
    if self._running is None:
      return {}
    return {
      name: np.asarray(x).tolist()
      for name, x in dataclasses.asdict(self._running).items()
    }

  def restore(self, snapshot: Mapping[str, Any]) -> None:
    """Goes on from a `snapshot`; an empty one starts afresh."""
    if self._running is not None and snapshot:
      self._running = TaskMoments(
        **{name: jnp.asarray(x) for name, x in snapshot.items()}
      )

  def _by_siblings(
    self, trajectories: Sequence[Trajectory], attempts: Attempts
  ) -> tuple[list[TrainBatch], Report]:
    value_NU, self._running = advantages(
      attempts,
      num_tasks=len(self._task_ids),
      config=self._advantage,
      running=self._running,
    )
    value_NU = np.asarray(value_NU)
    require_finite(value_NU, self._advantage)
    has_signal_N = value_NU.any(axis=1)
    counted_N = np.asarray(counted_attempts(attempts, config=self._advantage))
    report = {
      "batch/trajectories_with_signal": float(has_signal_N.sum()),
      "batch/trained_tokens": 0.0,
      "batch/left_out_tokens": 0.0,
    }
    if not counted_N.any():
      return [], report
    chosen, left_out = self._choose(attempts, counted_N, has_signal_N)
    packed = [trajectories[n] for n in chosen]
    rows = self._pack(packed, report)
    value_RT = value_NU[chosen][rows.trajectory, rows.turn]
    task_RT = attempts.task_N[chosen][rows.trajectory]
    num_tokens_N = attempts.num_tokens_NU.sum(axis=1)
    idle = _Idle(attempts.task_N[left_out], num_tokens_N[left_out])
    report["batch/left_out_tokens"] = float(idle.num_tokens_K.sum())
    report["batch/trained_tokens"] += report["batch/left_out_tokens"]
    return self._lessons(rows, value_RT, task_RT, packed, idle), report

  def _choose(
    self, attempts: Attempts, counted_N: np.ndarray, has_signal_N: np.ndarray
  ) -> tuple[np.ndarray, np.ndarray]:
    """The attempts to compute, and those that only weigh in the mean.

    At least one is computed, so that an update is made of every batch that
    counts: the optimizer's momentum goes on where the gradient is 0.
    """
    if not self._loss.needs_advantage:
      return np.flatnonzero(counted_N), np.array([], int)
    computed_N = counted_N & has_signal_N
    if not computed_N.any():
      num_tokens_N = attempts.num_tokens_NU.sum(axis=1)
      shortest = np.where(counted_N, num_tokens_N, np.inf).argmin()
      computed_N[shortest] = True
    return np.flatnonzero(computed_N), np.flatnonzero(counted_N & ~computed_N)

  def _by_critic(
    self,
    trajectories: Sequence[Trajectory],
    attempts: Attempts,
    params: Params,
  ) -> tuple[list[TrainBatch], Report]:
    report: Report = {"batch/left_out_tokens": 0.0}
    rows = self._pack(trajectories, report)
    task_RT = attempts.task_N[rows.trajectory]
    lessons = self._lessons(
      rows, np.zeros(rows.mask.shape), task_RT, trajectories
    )
    value_RT = np.concatenate(
      [self._values(params, on_mesh(x, self._mesh)) for x in lessons]
    )
    judgement, self._running = critic_advantages(
      rows,
      place_rewards(rows, attempts.turn_reward_NU),
      value_RT,
      task_RT,
      num_tasks=len(self._task_ids),
      config=self._advantage,
      running=self._running,
    )
    return add_fields(lessons, judgement), report

  def _pack(self, trajectories: Sequence[Trajectory], report: Report) -> Rows:
    rows = pack(
      trajectories,
      row_length=self._batch.row_length,
      rows_multiple=self._batch.micro_batch,
    )
    report["batch/fill"] = rows.fill
    report["batch/trained_tokens"] = float(rows.mask.sum())
    return rows

  def _lessons(
    self,
    rows: Rows,
    value_RT: np.ndarray,
    task_RT: np.ndarray,
    packed: Sequence[Trajectory],
    idle: _Idle | None = None,
  ) -> list[TrainBatch]:
    advantage_RT = np.where(rows.mask, value_RT, 0).astype(np.float32)
    lessons = cut(
      rows, advantage_RT, self._batch.micro_batch, self._masks(rows, packed)
    )
    version_NU = answer_versions(packed)
    fields = {
      "task": task_RT.astype(np.int32),
      "version": version_NU[rows.trajectory, rows.turn],
    }
    idle = idle or _Idle(np.array([], int), np.array([], int))
    if self._loss.task_share != "tokens":
      fields["weight"], left_out = self._weights(task_RT, rows.mask, idle)
    elif self._loss.reduction == "token_mean":
      left_out = float(idle.num_tokens_K.sum())
    else:  # a mean over sequences
      left_out = float(len(idle.num_tokens_K))
    lessons = add_fields(lessons, fields)
    if not self._loss.needs_advantage:
      return lessons
    # Equal shares, so that each of several updates of a batch has its own.
    share = np.asarray(left_out / len(lessons), np.float32)
    return [dataclasses.replace(x, left_out=share) for x in lessons]

  def _masks(
    self, rows: Rows, packed: Sequence[Trajectory]
  ) -> AnswerMasks | None:
    """What was allowed; the table on the devices once, not once per lesson."""
    found = answer_masks(rows, packed, self._make_grammars)
    return found and dataclasses.replace(
      found, mask_MX=whole_on_mesh(found.mask_MX, self._mesh)
    )

  def _weights(
    self, task_RT: np.ndarray, mask_RT: np.ndarray, idle: _Idle
  ) -> tuple[np.ndarray, float]:
    """Of each packed token, and of all idle ones together."""
    idle_task_XT, idle_mask_XT = idle.rows(mask_RT.shape[1])
    weight_RT = np.asarray(
      losses.task_weights(
        pad_rows(np.concatenate([task_RT, idle_task_XT])),
        pad_rows(np.concatenate([mask_RT, idle_mask_XT])),
        num_tasks=len(self._task_ids),
      )
    )
    num_rows = len(mask_RT)
    return weight_RT[:num_rows], float(weight_RT[num_rows:].sum())

  def _penalties(self, trajectories: Sequence[Trajectory]) -> np.ndarray | None:
    """What straying from the reference costs each turn, if rewards tell."""
    if self._loss.kl_place != "reward":
      return None
    rows = self._pack(trajectories, {})
    lessons = cut(
      rows,
      np.zeros(rows.mask.shape),
      self._batch.micro_batch,
      self._masks(rows, trajectories),
    )
    assert self._reference is not None  # loss.kl_coefficient needs one
    params = self._reference.fetch()
    cost_RT = np.concatenate(
      [self._costs(params, on_mesh(x, self._mesh)) for x in lessons]
    )
    num_turns = max(len(t.turns) for t in trajectories)
    cost_NU = np.zeros((len(trajectories), num_turns))
    where = (rows.trajectory[rows.mask], rows.turn[rows.mask])
    np.add.at(cost_NU, where, cost_RT[rows.mask])
    return cost_NU

  def _complete(
    self, lessons: Sequence[TrainBatch], params: Params
  ) -> list[TrainBatch]:
    """The lessons with the log-probabilities that the objective reads."""
    lessons = self._token_weights.add(lessons, params)
    of_policies = {}
    if self._reference is not None and self._loss.kl_place == "loss":
      of_policies["reference_logprob"] = self._reference.fetch()
    if self._loss.proximal == "recomputed":
      of_policies["proximal_logprob"] = params

    def complete(lesson: TrainBatch) -> TrainBatch:
      lesson = on_mesh(lesson, self._mesh)
      fields = {
        name: self._logprobs(of, lesson) for name, of in of_policies.items()
      }
      return dataclasses.replace(lesson, **fields)

    return [complete(lesson) for lesson in lessons]


_OF_POLICY = {"policy_logprob_BT", "entropy_BT"}


class TokenWeights:
  """Adds `loss.token_weight` to the lessons of a batch, if there is one."""

  def __init__(self, policy: Policy, loss: LossConfig, *, temperature: float):
    self._function = function = loss.custom_function("token_weight")
    self._mesh = policy.mesh
    if function is None:
      return

    def measure(
      params: Params, lesson: TrainBatch
    ) -> tuple[jax.Array, jax.Array]:
      return token_logprobs(
        policy, params, lesson.batch, temperature=temperature, **loss.tiles
      )

    def weigh(inputs: dict[str, jax.Array], num_segments: int) -> jax.Array:
      weight_RT = function(inputs | {"num_segments": num_segments})
      some_RT = next(iter(inputs.values()))
      return function.require_shape(weight_RT, some_RT.shape)

    # What the host reads is whole in every process.
    whole = self._mesh and sharding.replicated(self._mesh)
    self._measure = jax.jit(measure, out_shardings=whole)
    self._weigh = jax.jit(weigh, static_argnames="num_segments")

  def add(
    self, lessons: Sequence[TrainBatch], params: Params
  ) -> Sequence[TrainBatch]:
    """The lessons, which are on the host, with `TrainBatch.token_weight`.

    Raises `NotFinite` if a trained token's weight is no number.
    """
    function = self._function
    if function is None or not lessons:
      return lessons
    parts = [self._inputs(lesson, params) for lesson in lessons]
    inputs = {
      name: np.concatenate([part[name] for part in parts])
      for name in sorted(function.reads - {"num_segments"})
    }
    mask_RT = np.concatenate([lesson.batch.mask for lesson in lessons])
    weight_RT = self._weigh(
      {name: pad_rows(x) for name, x in inputs.items()},
      num_segments=sequences_of(lessons[0].batch)["num_segments"],
    )
    weight_RT = np.asarray(weight_RT, np.float32)[: len(mask_RT)]
    weight_RT = np.where(mask_RT, weight_RT, 0)
    if not np.isfinite(weight_RT).all():
      raise NotFinite(
        f"{function.key}={function.target!r} gave "
        f"{np.sum(~np.isfinite(weight_RT))} of {mask_RT.sum()} tokens a weight "
        "that is no finite number; no update was made of this batch"
      )
    return add_fields(lessons, {"token_weight": weight_RT})

  def _inputs(self, lesson: TrainBatch, params: Params) -> dict[str, Any]:
    assert self._function is not None
    found = {"advantage_BT": lesson.advantage}
    found |= token_inputs(lesson.batch, lesson.task, lesson.version)
    if self._function.reads & _OF_POLICY:
      measured = self._measure(params, on_mesh(lesson, self._mesh))
      found["policy_logprob_BT"], found["entropy_BT"] = measured
    return found
