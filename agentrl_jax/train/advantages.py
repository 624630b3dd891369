"""What each turn of each attempt is worth: from names in the config to numbers.

Groups become arrays on the host; everything else is one jitted function of
`losses`, over the whole batch and before any cut. What a critic has a part in
is `train.critic`'s.

Axes: N attempts, U turns of an attempt, M groups, I tasks. N and U are padded
to powers of two, so that few shapes are compiled.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from agentrl_jax import losses
from agentrl_jax.data.packing import Rows
from agentrl_jax.data.trajectory import Group, Status, Trajectory
from agentrl_jax.errors import NotFinite
from agentrl_jax.losses import TaskMoments
from agentrl_jax.train.config import AdvantageConfig
from agentrl_jax.train.custom import CustomFunction


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Attempts:
  """The attempts of a batch as arrays; what is padding is not valid."""

  reward_N: np.ndarray  # float32, shaped
  group_N: np.ndarray  # int32, counts the groups of the batch
  task_N: np.ndarray  # int32
  valid_N: np.ndarray  # bool
  turn_reward_NU: np.ndarray  # float32, shaped; adds up to reward_N
  num_tokens_NU: np.ndarray  # int32, trained on
  state_NU: np.ndarray  # int32, equal where a group's turns saw the same
  exists_NU: np.ndarray  # bool
  num_states: int = dataclasses.field(  # of any group, at most
    default=1, metadata={"static": True}
  )


def shaped_reward(trajectory: Trajectory, incomplete_reward: float) -> float:
  """The environment's verdict, or what not finishing costs.

  AgentRL (arXiv:2510.04206): any policy's ending but `completed` scores
  `incomplete_reward`, whatever was earned on the way.
  """
  if trajectory.status is Status.COMPLETED:
    return trajectory.reward
  return incomplete_reward


def turn_rewards(
  trajectory: Trajectory, incomplete_reward: float
) -> np.ndarray:
  """The rewards of its turns [U]; the last one settles the shaped total."""
  rewards = np.array([turn.reward for turn in trajectory.turns], np.float32)
  if len(rewards):
    total = shaped_reward(trajectory, incomplete_reward)
    rewards[-1] += np.float32(total) - rewards.sum()
  return rewards


def make_attempts(
  groups: Sequence[Group],
  task_ids: Mapping[str, int],
  config: AdvantageConfig,
  penalty_NU: np.ndarray | None = None,
) -> Attempts:
  """The attempts of all groups, in their order.

  `penalty_NU` is taken off the rewards of the turns; U is that of the longest.
  States are told apart for the estimator that reads them alone.
  """
  members = [
    (g, t) for g, group in enumerate(groups) for t in group.trajectories
  ]
  num_turns = max((len(t.turns) for _, t in members), default=1)
  attempts = _no_attempts(_power_of_two(len(members)), _power_of_two(num_turns))
  for n, (g, trajectory) in enumerate(members):
    attempts.reward_N[n] = shaped_reward(trajectory, config.incomplete_reward)
    attempts.group_N[n] = g
    attempts.task_N[n] = task_ids[trajectory.task.name]
    attempts.valid_N[n] = True
    turns = slice(len(trajectory.turns))
    attempts.exists_NU[n, turns] = True
    attempts.turn_reward_NU[n, turns] = turn_rewards(
      trajectory, config.incomplete_reward
    )
    attempts.num_tokens_NU[n, turns] = [
      len(turn.sampled) for turn in trajectory.turns
    ]
  if penalty_NU is not None:
    attempts.reward_N[: len(members)] -= penalty_NU.sum(axis=1)
    attempts.turn_reward_NU[: len(members), :num_turns] -= penalty_NU
  if config.reads_states:
    return _with_states(attempts, groups)
  return attempts


def _with_states(attempts: Attempts, groups: Sequence[Group]) -> Attempts:
  """Numbers the observations of each group: equal ones are one state."""
  state_NU, n = attempts.state_NU.copy(), 0
  for group in groups:
    seen: dict[bytes, int] = {}
    for trajectory in group.trajectories:
      for u, turn in enumerate(trajectory.turns):
        state = seen.setdefault(turn.observation.tobytes(), len(seen))
        state_NU[n, u] = state
      n += 1
  largest = max((len(group.trajectories) for group in groups), default=1)
  # As many as there could be: what there are would compile anew every time.
  num_states = _power_of_two(largest) * state_NU.shape[1]
  return dataclasses.replace(attempts, state_NU=state_NU, num_states=num_states)


@partial(jax.jit, static_argnames=("config",))
def counted_attempts(
  attempts: Attempts, *, config: AdvantageConfig
) -> jax.Array:
  """bool [N]: the attempts that the loss is a mean over.

  All attempts of the groups that `config.keep` keeps, whatever their advantage,
  that have a token to train on.
  """
  keep_M = kept_groups(attempts, attempts.reward_N.shape[0], config)
  has_tokens_N = attempts.num_tokens_NU.sum(axis=1) > 0
  return attempts.valid_N & keep_M[attempts.group_N] & has_tokens_N


@partial(jax.jit, static_argnames=("num_tasks", "config"))
def advantages(
  attempts: Attempts,
  *,
  num_tasks: int,
  config: AdvantageConfig,
  running: TaskMoments | None = None,
) -> tuple[jax.Array, TaskMoments | None]:
  """The advantage of every turn [N, U], and the running statistics after it.

  Attempts of a group that is not kept get 0, as does what is not there.
  """
  num_groups = attempts.reward_N.shape[0]
  keep_M = kept_groups(attempts, num_groups, config)
  valid_N = attempts.valid_N & keep_M[attempts.group_N]
  over_tasks = partial(
    normalise, num_tasks=num_tasks, config=config, running=running
  )
  by_turn = config.varies_within_attempt
  function = config.custom_function("estimator")
  if function is not None:
    value = custom_advantages(
      function,
      attempts,
      valid_N,
      num_groups=num_groups,
      num_tasks=num_tasks,
      by_turn=by_turn,
    )
  else:
    of_kind = _of_turns if by_turn else _of_attempts
    value = of_kind(attempts, valid_N, num_groups, config)
  if not by_turn:
    num_tokens_N = attempts.num_tokens_NU.sum(axis=1)
    if config.task_statistics == "trajectories":
      num_tokens_N = jnp.minimum(num_tokens_N, 1)  # each counts once
    value_N, running = over_tasks(value, attempts.task_N, num_tokens_N, valid_N)
    value_NU = jnp.broadcast_to(value_N[:, None], attempts.exists_NU.shape)
  else:
    shape = value.shape
    task_NU = jnp.broadcast_to(attempts.task_N[:, None], shape)
    value_W, running = over_tasks(
      value.reshape(-1),
      task_NU.reshape(-1),
      attempts.num_tokens_NU.reshape(-1),
      (valid_N[:, None] & attempts.exists_NU).reshape(-1),
    )
    value_NU = value_W.reshape(shape)
  exists_NU = valid_N[:, None] & attempts.exists_NU
  return jnp.where(exists_NU, value_NU, 0), running


def attempt_inputs(
  attempts: Attempts, valid_N: jax.Array, num_groups: int
) -> dict[str, Any]:
  """What custom functions of attempts may take, by its name there."""
  return {
    "reward_N": attempts.reward_N,
    "group_N": attempts.group_N,
    "task_N": attempts.task_N,
    "num_tokens_N": attempts.num_tokens_NU.sum(axis=1),
    "valid_N": valid_N,
    "num_groups": num_groups,
    "reward_NU": attempts.turn_reward_NU,
    "state_NU": attempts.state_NU,
    "num_tokens_NU": attempts.num_tokens_NU,
    "valid_NU": valid_N[:, None] & attempts.exists_NU,
    "num_states": attempts.num_states,
  }


def custom_advantages(
  function: CustomFunction,
  attempts: Attempts,
  valid_N: jax.Array,
  *,
  num_groups: int,
  num_tasks: int,
  by_turn: bool,
) -> jax.Array:
  """A custom estimator's numbers [N], or [N, U] by turn; 0 where not valid.

  Raises `ConfigError` if it returns another shape.
  """
  available = attempt_inputs(attempts, valid_N, num_groups)
  valid = available["valid_NU"] if by_turn else valid_N
  value = function(available | {"num_tasks": num_tasks})
  function.require_shape(value, valid.shape)
  return jnp.where(valid, jnp.asarray(value, jnp.float32), 0)


def require_finite(value_NU: np.ndarray, config: AdvantageConfig) -> None:
  """Raises `NotFinite` if an advantage is no number, naming the estimator."""
  bad_N = ~np.isfinite(value_NU).all(axis=1)
  if bad_N.any():
    raise NotFinite(
      f"advantage.estimator={config.estimator!r} gave {bad_N.sum()} attempts "
      "of this batch an advantage that is no finite number, the first of them "
      f"attempt {bad_N.argmax()} of the batch; no update was made of it. Look "
      "at the attempts' rewards and at the estimator"
    )


def kept_groups(
  attempts: Attempts, num_groups: int, config: AdvantageConfig
) -> jax.Array:
  """keep_M, bool: the groups that `advantage.keep` trains on."""
  function = config.custom_function("keep")
  if function is not None:
    kept_M = function(attempt_inputs(attempts, attempts.valid_N, num_groups))
    function.require_shape(kept_M, (num_groups,))
    if kept_M.dtype != bool:
      raise function.refuse(f"returned numbers of type {kept_M.dtype}")
    return kept_M
  keep = {
    "all": lambda *_, **__: jnp.ones(num_groups, bool),
    "signal": losses.keep_groups_above,
    "std": partial(losses.keep_groups_above, threshold=config.keep_threshold),
    "top_share": partial(losses.keep_top_groups, share=config.keep_threshold),
    "top_signal": partial(losses.keep_top_signal, share=config.keep_threshold),
  }[config.keep]
  return keep(
    attempts.reward_N,
    attempts.group_N,
    num_groups=num_groups,
    valid_N=attempts.valid_N,
  )


def _of_attempts(
  attempts: Attempts,
  valid_N: jax.Array,
  num_groups: int,
  config: AdvantageConfig,
) -> jax.Array:
  if config.estimator == "reinforce_plus_plus":
    return jnp.where(valid_N, attempts.reward_N, 0)
  if config.estimator == "pass_at_k":
    # Graded rewards are a success when they are full marks.
    return losses.pass_at_k_advantage(
      attempts.reward_N >= 1,
      attempts.group_N,
      num_groups=num_groups,
      valid_N=valid_N,
      k=config.k,
    )
  estimate = partial(
    {
      "grpo": partial(
        losses.group_advantage,
        scale_by_std=config.scale_by_std,
        ddof=config.ddof,
        epsilon=config.epsilon,
      ),
      "rloo": losses.leave_one_out_advantage,
      "best_of_group": partial(
        losses.best_of_group_advantage,
        scale_by_std=config.scale_by_std,
        epsilon=config.epsilon,
      ),
      "max_at_k": partial(losses.max_at_k_advantage, k=config.k),
      "reinforce_plus_plus_baseline": partial(
        losses.group_advantage, scale_by_std=False
      ),
    }[config.estimator],
    num_groups=num_groups,
    valid_N=valid_N,
  )
  return estimate(attempts.reward_N, attempts.group_N)


def _of_turns(
  attempts: Attempts,
  valid_N: jax.Array,
  num_groups: int,
  config: AdvantageConfig,
) -> jax.Array:
  exists_NU = valid_N[:, None] & attempts.exists_NU
  if config.estimator == "gigpo":
    return losses.gigpo_advantage(
      attempts.turn_reward_NU,
      attempts.state_NU,
      attempts.group_N,
      num_groups=num_groups,
      num_states=attempts.num_states,
      valid_NU=exists_NU,
      discount=config.discount,
      step_weight=config.step_weight,
      scale_by_std=config.scale_by_std,
      epsilon=config.epsilon,
    )
  return_NU = losses.discounted_returns(
    attempts.turn_reward_NU, exists_NU, discount=config.discount
  )
  group_NU = jnp.broadcast_to(attempts.group_N[:, None], exists_NU.shape)
  return losses.group_advantage(
    return_NU.reshape(-1),
    group_NU.reshape(-1),
    num_groups=num_groups,
    valid_N=exists_NU.reshape(-1),
    scale_by_std=config.scale_by_std,
    ddof=config.ddof,
    epsilon=config.epsilon,
  ).reshape(exists_NU.shape)


def _no_attempts(num_attempts: int, num_turns: int) -> Attempts:
  shape = (num_attempts, num_turns)
  return Attempts(
    reward_N=np.zeros(num_attempts, np.float32),
    group_N=np.zeros(num_attempts, np.int32),
    task_N=np.zeros(num_attempts, np.int32),
    valid_N=np.zeros(num_attempts, bool),
    turn_reward_NU=np.zeros(shape, np.float32),
    num_tokens_NU=np.zeros(shape, np.int32),
    state_NU=np.zeros(shape, np.int32),
    exists_NU=np.zeros(shape, bool),
  )


def _power_of_two(size: int) -> int:
  return 1 << max(size - 1, 0).bit_length()


def place_rewards(rows: Rows, reward_NU: np.ndarray) -> np.ndarray:
  """The rewards of the attempts' turns, at their last sampled tokens."""
  last_RT = rows.mask.copy()
  last_RT[:, :-1] &= ~(
    rows.mask[:, 1:]
    & (rows.turn[:, 1:] == rows.turn[:, :-1])
    & (rows.segment[:, 1:] == rows.segment[:, :-1])
  )
  return np.where(last_RT, reward_NU[rows.trajectory, rows.turn], 0)


def pad_rows(x_RT: np.ndarray) -> np.ndarray:
  """x with rows of zeros up to a power of two: few shapes to compile for."""
  num_rows = len(x_RT)
  missing = (1 << (num_rows - 1).bit_length()) - num_rows
  return np.pad(x_RT, ((0, missing), (0, 0)))


def critic_advantages(
  rows: Rows,
  reward_RT: np.ndarray,
  value_RT: np.ndarray,
  task_RT: np.ndarray,
  *,
  num_tasks: int,
  config: AdvantageConfig,
  running: TaskMoments | None = None,
) -> tuple[dict[str, np.ndarray], TaskMoments | None]:
  """Advantages and value targets of a batch; the statistics after it.

  The fields are advantage, old_value, value_target and value_mask, [R, T].
  """
  num_rows = len(rows.token)
  (advantage_RT, target_RT, fitted_RT), running = _judge(
    *(
      pad_rows(x)
      for x in (
        rows.mask,
        rows.segment,
        rows.turn,
        reward_RT,
        value_RT,
        task_RT,
      )
    ),
    num_tasks=num_tasks,
    config=config,
    running=running,
  )
  fields = {
    "advantage": advantage_RT,
    "value_target": target_RT,
    "value_mask": fitted_RT,
  }
  cut = {name: np.asarray(x)[:num_rows] for name, x in fields.items()}
  return cut | {"old_value": value_RT}, running


def custom_critic_advantages(
  function: CustomFunction, inputs: Mapping[str, Any]
) -> tuple[jax.Array, jax.Array]:
  """Advantage and target of a custom estimator, [R, T], 0 off the mask.

  Raises `ConfigError` if it returns anything else.
  """
  result = function(inputs)
  if not isinstance(result, tuple) or len(result) != 2:
    raise function.refuse(f"returned {type(result).__name__}")
  mask_RT = inputs["mask_BT"]
  for each in result:
    function.require_shape(each, mask_RT.shape)
  advantage_RT, target_RT = (jnp.where(mask_RT, x, 0) for x in result)
  return advantage_RT, target_RT


@partial(jax.jit, static_argnames=("num_tasks", "config"))
def _judge(
  mask_RT: jax.Array,
  segment_RT: jax.Array,
  turn_RT: jax.Array,
  reward_RT: jax.Array,
  value_RT: jax.Array,
  task_RT: jax.Array,
  *,
  num_tasks: int,
  config: AdvantageConfig,
  running: TaskMoments | None,
) -> tuple[tuple[jax.Array, ...], TaskMoments | None]:
  inputs = {
    "reward_BT": reward_RT,
    "value_BT": value_RT,
    "mask_BT": mask_RT,
    "turn_BT": turn_RT,
    "segment_BT": segment_RT,
  }
  function = config.custom_function("estimator")
  if function is not None:
    advantage_RT, target_RT = custom_critic_advantages(function, inputs)
  else:
    advantage_RT, target_RT = _estimate(inputs, config)
  fitted_RT = mask_RT
  if config.estimator == "turn_gae":  # the value is read there alone
    fitted_RT = losses.first_of_turn(mask_RT, turn_RT, segment_BT=segment_RT)
  advantage_W, running = normalise(
    advantage_RT.reshape(-1),
    task_RT.reshape(-1),
    mask_RT.reshape(-1).astype(jnp.int32),
    mask_RT.reshape(-1),
    num_tasks=num_tasks,
    config=config,
    running=running,
  )
  return (advantage_W.reshape(mask_RT.shape), target_RT, fitted_RT), running


def _estimate(
  inputs: Mapping[str, jax.Array], config: AdvantageConfig
) -> tuple[jax.Array, jax.Array]:
  """Advantage and target by the estimator of the package, [R, T] each."""
  inputs = dict(inputs)
  turn_RT = inputs.pop("turn_BT")
  estimate = {
    "gae": losses.gae,
    "turn_gae": partial(losses.turn_gae, turn_BT=turn_RT),
    "bi_level_gae": partial(
      losses.bi_level_gae, turn_BT=turn_RT, turn_discount=config.turn_discount
    ),
  }[config.estimator]
  return estimate(
    **inputs, discount=config.discount, gae_lambda=config.gae_lambda
  )


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
  """Whitened, normalised by task, or neither; 0 where not valid.

  Each entry counts as its number of trained tokens. `running` are the
  statistics that earlier batches left, if advantage.task_decay keeps any; those
  that this one leaves come back.
  """
  if config.whiten:
    return (
      losses.whiten_weighted(advantage_W, num_tokens_W, valid_W),
      running,
    )
  if not config.normalises_tasks:
    return jnp.where(valid_W, advantage_W, 0), running
  settings = dict(
    center=config.task_center, scale=config.task_scale, epsilon=config.epsilon
  )
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
