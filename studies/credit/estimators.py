"""Advantages of sampled games by every estimator of `train.advantages`.

A call is two tokens, the tool and its arguments, each drawn by the policy: so
estimators over tokens differ from those over turns. Critics are tables: exact
without the secret, exact with it, and broken in several ways. All of them are
those of the present policy, so that no critic is judged by how it was trained.

Axes: N episodes, U turns, K tokens of a turn, T = U K tokens of an episode.
Others as in `exact`.
"""

import dataclasses
import functools
from collections.abc import Mapping

import jax
import numpy as np

from agentrl_jax import losses
from agentrl_jax.data.packing import Rows
from agentrl_jax.train import advantages, critic
from agentrl_jax.train.advantages import TrajectoryArrays
from agentrl_jax.train.config.advantage import AdvantageConfig
from configs import base
from studies.credit.exact import Episodes, TablePolicy

TOKENS = 2  # of a call
# Settings of each row; keys that are not set are those of configs/base.py. No
# estimator is normalised by task unless it says so: there is one task.
_PLAIN = {"task_center": False, "task_scale": False}
_WHITENED = _PLAIN | {"whiten": True}
EPISODES: Mapping[str, Mapping[str, object]] = {
  "grpo": _PLAIN | {"estimator": "grpo"},
  "grpo_without_std": _PLAIN | {"estimator": "grpo", "scale_by_std": False},
  "grpo_by_task": {"estimator": "grpo"},  # AgentRL
  "rloo": _PLAIN | {"estimator": "rloo"},
  "reinforce_plus_plus": _WHITENED | {"estimator": "reinforce_plus_plus"},
  "reinforce_plus_plus_baseline": _WHITENED
  | {"estimator": "reinforce_plus_plus_baseline"},
  "best_of_group": _PLAIN | {"estimator": "best_of_group"},
  "max_at_4": _PLAIN
  | {"estimator": "max_at_k", "estimator_settings": {"k": 4}},
  "pass_at_4": _PLAIN
  | {"estimator": "pass_at_k", "estimator_settings": {"k": 4}},
  "turn_return": _PLAIN | {"estimator": "turn_return"},
  "gigpo": _PLAIN | {"estimator": "gigpo"},  # its state is the last reply
  "gigpo_by_set": _PLAIN | {"estimator": "gigpo"},
}
# Estimator, gae_lambda, critic.
CRITICS: Mapping[str, tuple[str, float, str]] = {
  "gae exact": ("gae", 0.95, "exact"),
  "gae noisy": ("gae", 0.95, "noisy"),
  "gae constant": ("gae", 0.95, "constant"),
  "turn_gae exact": ("turn_gae", 0.95, "exact"),
  "turn_gae exact, lambda 0": ("turn_gae", 0.0, "exact"),
  "turn_gae secret": ("turn_gae", 0.95, "secret"),
  "turn_gae secret, lambda 0": ("turn_gae", 0.0, "secret"),
  "turn_gae wrong secret": ("turn_gae", 0.95, "wrong_secret"),
  "turn_gae noisy": ("turn_gae", 0.95, "noisy"),
  "turn_gae noisy, lambda 0": ("turn_gae", 0.0, "noisy"),
  "turn_gae constant": ("turn_gae", 0.95, "constant"),
  "bi_level_gae exact": ("bi_level_gae", 0.95, "exact"),
  "bi_level_gae noisy": ("bi_level_gae", 0.95, "noisy"),
  "bi_level_gae constant": ("bi_level_gae", 0.95, "constant"),
}
# No estimators: the advantages that are to be estimated, and noise.
REFERENCES = ("exact", "exact given secret", "random")
_returns = jax.jit(functools.partial(losses.turn_returns, discount=1.0))
ESTIMATORS = (*REFERENCES, "returns", *EPISODES, *CRITICS)


@dataclasses.dataclass(frozen=True, eq=False)
class Batch:
  """Episodes, and the policy that played them."""

  policy: TablePolicy
  episodes: Episodes
  seed: int  # of broken critics and of random advantages

  def given_secret(self, table_UXC: np.ndarray) -> np.ndarray:
    """Looks up what depends on the secret, for every turn."""
    return self._of_secret(table_UXC, self.episodes.secret_N)

  def exact_NU(self) -> np.ndarray:
    """Returns A(h, a) of every turn."""
    return self._of_call(
      self.episodes.at_turns(self.policy.exact.advantage_UXA)
    )

  def secret_NU(self) -> np.ndarray:
    """Returns A(h, a | c) of every turn."""
    return self._of_call(
      self.given_secret(self.policy.exact.secret_advantage_UXCA)
    )

  def values(self, critic: str) -> np.ndarray:
    """Returns a critic's value before each token, [N, U, K]."""
    exact, episodes = self.policy.exact, self.episodes
    if critic in ("secret", "wrong_secret"):
      secret_N = episodes.secret_N
      if critic == "wrong_secret":
        secret_N = np.roll(np.arange(secret_N.max() + 1), 1)[secret_N]
      q_NUA = self._of_secret(exact.secret_action_value_UXCA, secret_N)
      value_NU = self._of_secret(exact.secret_value_UXC, secret_N)
    else:
      q_NUA = episodes.at_turns(exact.action_value_UXA)
      value_NU = episodes.at_turns(exact.value_UX)
    value_NUK = np.stack([value_NU, self._after_tool(q_NUA)], axis=-1)
    if critic == "constant":
      return np.full_like(value_NUK, exact.expected_return)
    if critic == "noisy":
      rng = np.random.default_rng(self.seed)
      spread = value_NU[episodes.played_NU].std()
      noise_UXK = rng.normal(0, spread, (*exact.value_UX.shape, TOKENS))
      value_NUK += episodes.at_turns(noise_UXK)
    return value_NUK

  def _of_secret(self, table: np.ndarray, secret_N: np.ndarray) -> np.ndarray:
    turn_U = np.arange(self.episodes.set_NU.shape[1])
    return table[turn_U, self.episodes.set_NU, secret_N[:, None]]

  def _of_call(self, x_NUA: np.ndarray) -> np.ndarray:
    call_NU1 = self.episodes.call_NU[:, :, None]
    return np.take_along_axis(x_NUA, call_NU1, axis=-1)[..., 0]

  def _after_tool(self, q_NUA: np.ndarray) -> np.ndarray:
    """Returns the mean of Q over the calls of the tool that was chosen."""
    return (self.tool_policy_NUA * q_NUA).sum(axis=-1)

  @functools.cached_property
  def tool_policy_NUA(self) -> np.ndarray:
    """The policy of each turn, given the tool of its call."""
    guess_A = self.policy.rules.guess_A
    tool_NU1 = guess_A[self.episodes.call_NU][:, :, None]
    policy_NUA = self.episodes.at_turns(self.policy.probability_UXA)
    weight_NUA = np.where(guess_A == tool_NU1, policy_NUA, 0)
    return weight_NUA / weight_NUA.sum(axis=-1, keepdims=True)

  def gradient(self, advantage_NUK: np.ndarray) -> np.ndarray:
    """Returns the policy gradient by the logits, [U, X, A].

      sum over the tokens of A grad log pi(token)

    with pi(tool) the sum of the policy over the calls of the tool, and
    pi(arguments) the policy given the tool. It is what `token_mean` of
    `losses.reinforce` has, times the number of tokens.
    """
    episodes, given_tool_NUA = self.episodes, self.tool_policy_NUA
    policy_NUA = episodes.at_turns(self.policy.probability_UXA)
    chosen_NUA = episodes.call_NU[:, :, None] == np.arange(policy_NUA.shape[-1])
    tool_NUA = given_tool_NUA - policy_NUA
    arguments_NUA = chosen_NUA - given_tool_NUA
    each_NUA = (
      advantage_NUK[:, :, :1] * tool_NUA
      + advantage_NUK[:, :, 1:] * arguments_NUA
    )
    each_NUA[~episodes.played_NU] = 0
    gradient_UXA = np.zeros(self.policy.rules.shape)
    turn_U = np.arange(episodes.set_NU.shape[1])
    np.add.at(gradient_UXA, (turn_U, episodes.set_NU), each_NUA)
    return gradient_UXA


def estimate(name: str, batch: Batch) -> np.ndarray:
  """Returns the advantage of every token [N, U, K]; 0 where not played."""
  played_NU1 = batch.episodes.played_NU[:, :, None]
  if name in CRITICS:
    advantage_NUK = _with_critic(name, batch)
  else:
    advantage_NUK = np.repeat(_by_turn(name, batch)[:, :, None], TOKENS, axis=2)
  return np.where(played_NU1, advantage_NUK, 0)


def _by_turn(name: str, batch: Batch) -> np.ndarray:
  episodes = batch.episodes
  if name == "exact":
    return batch.exact_NU()
  if name == "exact given secret":
    return batch.secret_NU()
  if name == "random":
    rng = np.random.default_rng(batch.seed)
    return rng.normal(size=episodes.set_NU.shape)
  if name == "returns":
    turn_NU = np.broadcast_to(
      np.arange(episodes.set_NU.shape[1]), episodes.set_NU.shape
    )
    reward_NU = episodes.reward_NU
    return np.asarray(_returns(reward_NU, episodes.played_NU, turn_NU))
  states = "set" if name == "gigpo_by_set" else "reply"
  arrays = trajectory_arrays(episodes, states=states)
  advantage_NU, *_ = advantages.advantages(
    arrays, num_tasks=1, config=_config(name)
  )
  return np.asarray(advantage_NU)


@functools.cache
def _config(name: str) -> AdvantageConfig:
  if name in CRITICS:
    return critic_config(*CRITICS[name][:2])
  return base.AdvantageConfig(**EPISODES[name])


def critic_config(estimator: str, gae_lambda: float) -> AdvantageConfig:
  """Returns the settings of an estimator of the gae family."""
  settings = _PLAIN | {"estimator": estimator, "gae_lambda": gae_lambda}
  return base.AdvantageConfig(**settings)


def trajectory_arrays(episodes: Episodes, *, states: str) -> TrajectoryArrays:
  """Returns the episodes as `train.advantages.make_arrays` would.

  A state is the last reply ("reply"), which is the observation that a run
  compares, or the turn and the set that the replies left ("set").
  """
  num_episodes, num_turns = episodes.set_NU.shape
  attempts = int(np.bincount(episodes.group_N).max())
  state_NU = np.zeros((num_episodes, num_turns), np.int32)
  if states == "reply":
    state_NU[:, 1:] = 1 + episodes.yes_NU[:, :-1]
  else:
    turn_U = np.arange(num_turns)
    history_NU = episodes.set_NU * num_turns + turn_U
    for group in np.unique(episodes.group_N):
      members_N = episodes.group_N == group
      state_NU[members_N] = np.unique(
        history_NU[members_N], return_inverse=True
      )[1].reshape(-1, num_turns)
  return TrajectoryArrays(
    reward_N=episodes.reward_NU.sum(axis=1).astype(np.float32),
    group_N=episodes.group_N.astype(np.int32),
    task_N=np.zeros(num_episodes, np.int32),
    valid_N=np.ones(num_episodes, bool),
    turn_reward_NU=episodes.reward_NU.astype(np.float32),
    num_tokens_NU=TOKENS * episodes.played_NU.astype(np.int32),
    state_NU=state_NU,
    exists_NU=episodes.played_NU,
    num_states=attempts * num_turns,
  )


def _with_critic(name: str, batch: Batch) -> np.ndarray:
  return with_values(batch, batch.values(CRITICS[name][2]), _config(name))


def with_values(
  batch: Batch, value_NUK: np.ndarray, config: AdvantageConfig
) -> np.ndarray:
  """Returns the advantages [N, U, K] that the gae family makes from values."""
  episodes = batch.episodes
  rows = _rows(episodes)
  fields = critic.critic_advantages(
    rows,
    critic.place_rewards(rows, episodes.reward_NU.astype(np.float32)),
    value_NUK.astype(np.float32).reshape(rows.mask.shape),
    np.zeros(rows.mask.shape, np.int32),
    config,
    advantages.RunningMoments(config, num_tasks=1),
  )
  return fields["advantage"].reshape(value_NUK.shape)


def _rows(episodes: Episodes) -> Rows:
  """Returns one row per episode, of which every token is trained on."""
  num_episodes, num_turns = episodes.set_NU.shape
  shape = (num_episodes, num_turns * TOKENS)
  zeros_NT = np.zeros(shape, np.int32)
  token_T = np.arange(shape[1], dtype=np.int32)
  return Rows(
    token=zeros_NT,
    position=np.broadcast_to(token_T, shape),
    segment=zeros_NT + 1,
    mask=np.repeat(episodes.played_NU, TOKENS, axis=1),
    behavior_logprob=zeros_NT.astype(np.float32),
    trajectory=np.broadcast_to(np.arange(num_episodes)[:, None], shape),
    turn=np.broadcast_to(token_T // TOKENS, shape),
    policy_slot=zeros_NT,
  )
