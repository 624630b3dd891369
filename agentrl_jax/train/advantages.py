"""Advantages of a batch: from groups, or from a critic, as the config says.

Groups become arrays on the host; everything else is one jitted function of
`losses` over the whole batch, before it is cut into micro-batches. It runs on
the host in float64: float32 has no 1e8 + 1, nor the square of 1e20, and such
rewards would have advantages of 0. A critic is a head on the policy's hidden
states (`model.value_head`); its values are read before the update.

Axes: N trajectories, U turns of a trajectory, M groups, I tasks, R rows, T
tokens, W entries of any kind. N, U and R are padded to powers of two, so that
few shapes are compiled.
"""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from agentrl_jax import losses
from agentrl_jax.data.records import Group, Status, Trajectory
from agentrl_jax.errors import NotFinite
from agentrl_jax.losses import TaskMoments
from agentrl_jax.train.config.advantage import AdvantageConfig
from agentrl_jax.train.custom import CustomFunction


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrajectoryArrays:
  """The trajectories of a batch as arrays; padding is not valid."""

  reward_N: np.ndarray  # float64, shaped
  group_N: np.ndarray  # int32, counts the groups of the batch
  task_N: np.ndarray  # int32
  valid_N: np.ndarray  # bool
  turn_reward_NU: np.ndarray  # float64, shaped; adds up to reward_N
  num_tokens_NU: np.ndarray  # int32, trained on
  state_NU: np.ndarray  # int32, equal for equal observations of a group
  exists_NU: np.ndarray  # bool
  num_states: int = dataclasses.field(  # of any group, at most
    default=1, metadata={"static": True}
  )


def shaped_reward(trajectory: Trajectory, incomplete_reward: float) -> float:
  """Returns the environment's reward, or that of an unfinished episode.

  AgentRL (arXiv:2510.04206): an episode with any status but `completed` scores
  `incomplete_reward`, whatever it earned before.
  """
  if trajectory.status is Status.COMPLETED:
    return trajectory.reward
  return incomplete_reward


def turn_rewards(
  trajectory: Trajectory, incomplete_reward: float
) -> np.ndarray:
  """Returns the rewards of the turns [U], which add up to `shaped_reward`.

  The difference is put on the last turn.
  """
  rewards = np.array([turn.reward for turn in trajectory.turns], np.float64)
  if len(rewards):
    rewards[-1] += shaped_reward(trajectory, incomplete_reward) - rewards.sum()
  return rewards


def make_arrays(
  groups: Sequence[Group],
  task_ids: Mapping[str, int],
  config: AdvantageConfig,
  penalty_NU: np.ndarray | None = None,
) -> TrajectoryArrays:
  """Collects the trajectories of all groups, in their order.

  `penalty_NU` is subtracted from the rewards of the turns; its U is the length
  of the longest trajectory. States are numbered only for an estimator that
  reads them.
  """
  members = [
    (g, t) for g, group in enumerate(groups) for t in group.trajectories
  ]
  num_turns = max((len(t.turns) for _, t in members), default=1)
  arrays = _empty_arrays(_power_of_two(len(members)), _power_of_two(num_turns))
  for n, (g, trajectory) in enumerate(members):
    arrays.reward_N[n] = shaped_reward(trajectory, config.incomplete_reward)
    arrays.group_N[n] = g
    arrays.task_N[n] = task_ids[trajectory.task.name]
    arrays.valid_N[n] = True
    turns = slice(len(trajectory.turns))
    arrays.exists_NU[n, turns] = True
    arrays.turn_reward_NU[n, turns] = turn_rewards(
      trajectory, config.incomplete_reward
    )
    arrays.num_tokens_NU[n, turns] = [
      len(turn.sampled) for turn in trajectory.turns
    ]
  if penalty_NU is not None:
    arrays.reward_N[: len(members)] -= penalty_NU.sum(axis=1)
    arrays.turn_reward_NU[: len(members), :num_turns] -= penalty_NU
  if config.reads_states:
    return _with_states(arrays, groups)
  return arrays


def _empty_arrays(num_trajectories: int, num_turns: int) -> TrajectoryArrays:
  shape = (num_trajectories, num_turns)
  return TrajectoryArrays(
    reward_N=np.zeros(num_trajectories),
    group_N=np.zeros(num_trajectories, np.int32),
    task_N=np.zeros(num_trajectories, np.int32),
    valid_N=np.zeros(num_trajectories, bool),
    turn_reward_NU=np.zeros(shape),
    num_tokens_NU=np.zeros(shape, np.int32),
    state_NU=np.zeros(shape, np.int32),
    exists_NU=np.zeros(shape, bool),
  )


def _with_states(
  arrays: TrajectoryArrays, groups: Sequence[Group]
) -> TrajectoryArrays:
  """Numbers the observations of each group: equal ones are one state."""
  state_NU, n = arrays.state_NU.copy(), 0
  for group in groups:
    seen: dict[bytes, int] = {}
    for trajectory in group.trajectories:
      for u, turn in enumerate(trajectory.turns):
        state = seen.setdefault(turn.observation.tobytes(), len(seen))
        state_NU[n, u] = state
      n += 1
  largest = max((len(group.trajectories) for group in groups), default=1)
  # The largest possible number: the actual one would recompile every time.
  num_states = _power_of_two(largest) * state_NU.shape[1]
  return dataclasses.replace(arrays, state_NU=state_NU, num_states=num_states)


def _power_of_two(size: int) -> int:
  return 1 << max(size - 1, 0).bit_length()


class RunningMoments:
  """Mean and spread of the tasks' advantages, if they go on between batches."""

  def __init__(self, config: AdvantageConfig, *, num_tasks: int):
    self.num_tasks = num_tasks
    self.value = losses.unseen_tasks(num_tasks) if config.task_decay else None

  def snapshot(self) -> dict[str, Any]:
    """Returns the state that a resumed run needs, as JSON values."""
    if self.value is None:
      return {}
    fields = dataclasses.asdict(self.value)
    return {name: np.asarray(x).tolist() for name, x in fields.items()}

  def restore(self, snapshot: Mapping[str, Any]) -> None:
    """Continues from a `snapshot`; an empty one starts afresh."""
    if self.value is not None and snapshot:
      self.value = TaskMoments(
        **{name: np.asarray(x) for name, x in snapshot.items()}
      )


@dataclasses.dataclass(frozen=True)
class Rated:
  """Trajectories to compute, with numbers of their turns; K only weigh."""

  trajectories: Sequence[Trajectory]
  value_NU: np.ndarray  # advantages; rewards, for a critic
  task_N: np.ndarray
  left_task_K: np.ndarray  # int
  left_tokens_K: np.ndarray  # int, trained on


def rate(
  groups: Sequence[Group],
  task_ids: Mapping[str, int],
  config: AdvantageConfig,
  moments: RunningMoments,
  *,
  uses_critic: bool,
  leaves_out: bool,
  penalty_NU: np.ndarray | None = None,
) -> tuple[Rated, dict[str, float]]:
  """Computes advantages, and selects the trajectories to compute; and metrics.

  With `leaves_out` those of advantage 0 only weigh. At least one is computed,
  so that every batch that counts has the policy's metrics, its entropy for
  example, also where the update is skipped.
  """
  trajectories = [t for group in groups for t in group.trajectories]
  arrays = make_arrays(groups, task_ids, config, penalty_NU)
  if uses_critic:
    n, none_K = len(trajectories), np.array([], int)
    rewards_NU, task_N = arrays.turn_reward_NU[:n], arrays.task_N[:n]
    rated = Rated(trajectories, rewards_NU, task_N, none_K, none_K)
    return rated, _left_out_metrics(rated)
  value_NU, moments.value, raw = advantages(
    arrays, num_tasks=moments.num_tasks, config=config, running=moments.value
  )
  require_finite(value_NU, config)
  has_signal_N = value_NU.any(axis=1)
  num_tokens_N = arrays.num_tokens_NU.sum(axis=1)
  computed_N = counted_N = counted_trajectories(arrays, config=config)
  if leaves_out and counted_N.any():
    computed_N = counted_N & has_signal_N
    if not computed_N.any():
      shortest = np.where(counted_N, num_tokens_N, np.inf).argmin()
      computed_N[shortest] = True
  left_N = counted_N & ~computed_N
  rated = Rated(
    [trajectories[n] for n in np.flatnonzero(computed_N)],
    value_NU[computed_N],
    arrays.task_N[computed_N],
    arrays.task_N[left_N],
    num_tokens_N[left_N],
  )
  return rated, moment_numbers(raw, task_ids) | _left_out_metrics(rated) | {
    "batch/trajectories_with_signal": float(has_signal_N.sum())
  }


def _left_out_metrics(rated: Rated) -> dict[str, float]:
  left_out = float(rated.left_tokens_K.sum())
  # Tokens that are packed count as trained on, too.
  return {"batch/left_out_tokens": left_out, "batch/trained_tokens": left_out}


@contextlib.contextmanager
def on_host_in_float64() -> Iterator[None]:
  """Runs the functions of jax in its body on the host, with float64.

  A process without jax's CPU backend runs them on its device.
  """
  with contextlib.ExitStack() as stack:
    stack.enter_context(jax.enable_x64(True))
    with contextlib.suppress(RuntimeError):  # JAX_PLATFORMS leaves the CPU out
      host = jax.local_devices(backend="cpu")[0]
      stack.enter_context(jax.default_device(host))
    yield


def counted_trajectories(
  arrays: TrajectoryArrays, *, config: AdvantageConfig
) -> np.ndarray:
  """Selects the trajectories that the loss is a mean over, bool [N].

  All trajectories of the groups that `config.keep` keeps, whatever their
  advantage, that have a token to train on.
  """
  with on_host_in_float64():
    keep_M = _kept_groups(arrays, config=config)
  has_tokens_N = arrays.num_tokens_NU.sum(axis=1) > 0
  return arrays.valid_N & np.asarray(keep_M)[arrays.group_N] & has_tokens_N


def advantages(
  arrays: TrajectoryArrays,
  *,
  num_tasks: int,
  config: AdvantageConfig,
  running: TaskMoments | None = None,
) -> tuple[np.ndarray, TaskMoments | None, TaskMoments]:
  """Returns the advantage of every turn [N, U], and two kinds of moments.

  Trajectories of a group that is not kept get 0, as does padding. Advantages
  are float32, moments float64: the running ones, and those of this batch before
  any normalisation, over the tokens of each task in the kept groups.
  """
  with on_host_in_float64():
    value_NU, running, moments = _advantages(
      arrays, num_tasks=num_tasks, config=config, running=as_float64(running)
    )
    raw = jax.tree.map(np.asarray, moments)
    return as_float32(value_NU), as_float64(running), raw


def moment_numbers(
  moments: TaskMoments, task_ids: Mapping[str, int]
) -> dict[str, float]:
  """Returns mean and spread of each task's advantages as metrics.

  A task of which the batch has no two tokens has none.
  """
  numbers = {}
  for task, i in task_ids.items():
    if moments.weight_I[i] > 1:
      numbers[f"advantage/mean/{task}"] = float(moments.mean_I[i])
      spread = float(np.sqrt(moments.variance_I[i]))
      numbers[f"advantage/spread/{task}"] = spread
  return numbers


def as_float64(running: TaskMoments | None) -> TaskMoments | None:
  """Returns statistics on the host, float64."""
  moments: TaskMoments | None = jax.tree.map(
    lambda x: np.asarray(x, np.float64), running
  )
  return moments


def as_float32(x: jax.Array) -> np.ndarray:
  """Returns an array on the host, float32; one too large is infinite."""
  with np.errstate(over="ignore"):  # `require_finite` says so
    return np.asarray(x).astype(np.float32)


@partial(jax.jit, static_argnames=("config",))
def _kept_groups(
  arrays: TrajectoryArrays, *, config: AdvantageConfig
) -> jax.Array:
  return kept_groups(arrays, arrays.reward_N.shape[0], config)


@partial(jax.jit, static_argnames=("num_tasks", "config"))
def _advantages(
  arrays: TrajectoryArrays,
  *,
  num_tasks: int,
  config: AdvantageConfig,
  running: TaskMoments | None,
) -> tuple[jax.Array, TaskMoments | None, TaskMoments]:
  num_groups = arrays.reward_N.shape[0]
  keep_M = kept_groups(arrays, num_groups, config)
  valid_N = arrays.valid_N & keep_M[arrays.group_N]
  over_tasks = partial(
    normalise, num_tasks=num_tasks, config=config, running=running
  )
  by_turn = config.varies_within_trajectory
  function = config.custom_function("estimator")
  if function is not None:
    value = custom_advantages(
      function,
      arrays,
      valid_N,
      num_groups=num_groups,
      num_tasks=num_tasks,
      by_turn=by_turn,
    )
  else:
    estimate = _turn_advantages if by_turn else _trajectory_advantages
    value = estimate(arrays, valid_N, num_groups, config)
  if not by_turn:
    num_tokens_N = arrays.num_tokens_NU.sum(axis=1)
    if config.task_statistics == "trajectories":
      num_tokens_N = jnp.minimum(num_tokens_N, 1)  # each counts once
    value_N, running = over_tasks(value, arrays.task_N, num_tokens_N, valid_N)
    value_NU = jnp.broadcast_to(value_N[:, None], arrays.exists_NU.shape)
  else:
    shape = value.shape
    task_NU = jnp.broadcast_to(arrays.task_N[:, None], shape)
    value_W, running = over_tasks(
      value.reshape(-1),
      task_NU.reshape(-1),
      arrays.num_tokens_NU.reshape(-1),
      (valid_N[:, None] & arrays.exists_NU).reshape(-1),
    )
    value_NU = value_W.reshape(shape)
  exists_NU = valid_N[:, None] & arrays.exists_NU
  raw_NU = value if by_turn else value[:, None]
  moments = losses.measure_tasks(
    jnp.broadcast_to(raw_NU, exists_NU.shape),
    jnp.broadcast_to(arrays.task_N[:, None], exists_NU.shape),
    jnp.where(exists_NU, arrays.num_tokens_NU, 0),
    num_tasks=num_tasks,
  )
  return jnp.where(exists_NU, value_NU, 0), running, moments


def custom_advantages(
  function: CustomFunction,
  arrays: TrajectoryArrays,
  valid_N: jax.Array,
  *,
  num_groups: int,
  num_tasks: int,
  by_turn: bool,
) -> jax.Array:
  """Calls a custom estimator: [N], or [N, U] by turn; 0 where not valid.

  Raises `ConfigError` if it returns another shape.
  """
  inputs = _estimator_inputs(arrays, valid_N, num_groups)
  valid = inputs["valid_NU"] if by_turn else valid_N
  value = function(inputs | {"num_tasks": num_tasks})
  function.require_shape(value, valid.shape)
  return jnp.where(valid, jnp.asarray(value), 0)


def _estimator_inputs(
  arrays: TrajectoryArrays, valid_N: Any, num_groups: int
) -> dict[str, Any]:
  """Returns the inputs of custom functions of trajectories, by name."""
  return {
    "reward_N": arrays.reward_N,
    "group_N": arrays.group_N,
    "task_N": arrays.task_N,
    "num_tokens_N": arrays.num_tokens_NU.sum(axis=1),
    "valid_N": valid_N,
    "num_groups": num_groups,
    "reward_NU": arrays.turn_reward_NU,
    "state_NU": arrays.state_NU,
    "num_tokens_NU": arrays.num_tokens_NU,
    "valid_NU": valid_N[:, None] & arrays.exists_NU,
    "num_states": arrays.num_states,
  }


def require_finite(value_NU: np.ndarray, config: AdvantageConfig) -> None:
  """Raises `NotFinite` for a NaN or infinite advantage; names the estimator."""
  bad_N = ~np.isfinite(value_NU).all(axis=1)
  if bad_N.any():
    raise NotFinite(
      f"advantage.estimator={config.estimator!r} gave {bad_N.sum()} "
      "trajectories of this batch an advantage that is NaN or infinite, the "
      f"first of them trajectory {bad_N.argmax()} of the batch; no update was "
      "made of it. Look at the trajectories' rewards and at the estimator"
    )


def kept_groups(
  arrays: TrajectoryArrays, num_groups: int, config: AdvantageConfig
) -> jax.Array:
  """Selects the groups that `advantage.keep` trains on: keep_M, bool."""
  function = config.custom_function("keep")
  if function is not None:
    kept_M = function(_estimator_inputs(arrays, arrays.valid_N, num_groups))
    function.require_shape(kept_M, (num_groups,))
    if kept_M.dtype != bool:
      raise function.refuse(f"returned numbers of type {kept_M.dtype}")
    return kept_M
  keep = {
    "all": lambda *_, **__: jnp.ones(num_groups, bool),
    "signal": losses.keep_groups_above,
    "std": losses.keep_groups_above,
    "top_share": losses.keep_top_groups,
    "top_signal": losses.keep_top_signal,
    "top_softmax": losses.keep_top_softmax,
  }[config.keep]
  return keep(
    arrays.reward_N,
    arrays.group_N,
    num_groups=num_groups,
    valid_N=arrays.valid_N,
    **config.keep_settings,
  )


def _trajectory_advantages(
  arrays: TrajectoryArrays,
  valid_N: jax.Array,
  num_groups: int,
  config: AdvantageConfig,
) -> jax.Array:
  if config.estimator == "reinforce_plus_plus":
    return jnp.where(valid_N, arrays.reward_N, 0)
  if config.estimator == "pass_at_k":
    # A graded reward is a success if it is the full reward of 1; a sum of
    # parts in float64 may be a little less.
    return losses.pass_at_k_advantage(
      arrays.reward_N.astype(np.float32) >= 1,
      arrays.group_N,
      num_groups=num_groups,
      valid_N=valid_N,
      **config.estimator_settings,
    )
  estimate = {
    "grpo": partial(losses.group_advantage, scale_by_std=config.scale_by_std),
    "rloo": losses.leave_one_out_advantage,
    "best_of_group": partial(
      losses.best_of_group_advantage, scale_by_std=config.scale_by_std
    ),
    "max_at_k": partial(losses.max_at_k_advantage, **config.estimator_settings),
    "reinforce_plus_plus_baseline": partial(
      losses.group_advantage, scale_by_std=False
    ),
  }[config.estimator]
  return estimate(
    arrays.reward_N, arrays.group_N, num_groups=num_groups, valid_N=valid_N
  )


def _turn_advantages(
  arrays: TrajectoryArrays,
  valid_N: jax.Array,
  num_groups: int,
  config: AdvantageConfig,
) -> jax.Array:
  exists_NU = valid_N[:, None] & arrays.exists_NU
  if config.estimator == "gigpo":
    return losses.gigpo_advantage(
      arrays.turn_reward_NU,
      arrays.state_NU,
      arrays.group_N,
      num_groups=num_groups,
      num_states=arrays.num_states,
      valid_NU=exists_NU,
      discount=config.discount,
      **config.estimator_settings,
      scale_by_std=config.scale_by_std,
    )
  return_NU = losses.discounted_returns(
    arrays.turn_reward_NU, exists_NU, discount=config.discount
  )
  group_NU = jnp.broadcast_to(arrays.group_N[:, None], exists_NU.shape)
  return losses.group_advantage(
    return_NU.reshape(-1),
    group_NU.reshape(-1),
    num_groups=num_groups,
    valid_N=exists_NU.reshape(-1),
    scale_by_std=config.scale_by_std,
  ).reshape(exists_NU.shape)


def pad_rows(x_RT: np.ndarray) -> np.ndarray:
  """Adds rows of zeros up to a power of two: few shapes to compile for."""
  num_rows = len(x_RT)
  missing = (1 << (num_rows - 1).bit_length()) - num_rows
  return np.pad(x_RT, ((0, missing), (0, 0)))


def normalise(
  advantage_W: jax.Array,
  task_W: jax.Array,
  num_tokens_W: jax.Array,
  valid_W: jax.Array,
  *,
  num_tasks: int,
  config: AdvantageConfig,
  running: TaskMoments | None,
) -> tuple[jax.Array, TaskMoments | None]:
  """Whitens, normalises by task, or neither; 0 where not valid.

  Each entry counts as its number of trained tokens. `running` holds the
  statistics of earlier batches if advantage.task_decay keeps any; the second
  result holds those after this batch.
  """
  if config.whiten:
    return (losses.whiten_weighted(advantage_W, num_tokens_W, valid_W), running)
  if not config.normalises_tasks:
    return jnp.where(valid_W, advantage_W, 0), running
  settings = dict(center=config.task_center, scale=config.task_scale)
  if running is None:
    advantage_W = losses.task_normalise_weighted(
      advantage_W,
      task_W,
      num_tokens_W,
      valid_W,
      num_tasks=num_tasks,
      **settings,
    )
    return advantage_W, None
  weight_W = jnp.where(valid_W, num_tokens_W, 0)
  batch = losses.measure_tasks(
    advantage_W, task_W, weight_W, num_tasks=num_tasks
  )
  running = losses.blend_moments(running, batch, decay=config.task_decay)
  advantage_W = losses.normalise_by_moments(
    advantage_W, task_W, weight_W > 0, running, **settings
  )
  return advantage_W, running
