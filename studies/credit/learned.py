"""Critics that are learned from episodes, as estimators of the ruler.

All are one network (`network`), fitted to the same episodes with the
same optimizer, number of steps and number of turns in a step:

- a value V(h), fitted to returns, for `turn_gae`; V(h, c) if it sees the
  secret (turn-level PPO);
- SWEET-RL's critic (arXiv:2503.15478): a policy pi(a | h, c) that starts as the
  present one and is fitted by Bradley-Terry to pairs of attempts at one secret;
  the advantage is the mean over a turn's tokens of log pi / present policy;
- ArCHer's twin Q and V with slow copies (arXiv:2402.19446), fitted by temporal
  differences to single turns and to answers drawn anew.

A critic sees nothing of the secret, the secret, or a random one. A random one
is drawn for every group, evenly and whatever the secret is: the same other
secret for each secret would be a name for it, from which a critic learns all
that the secret tells, and one that is never right tells what not to guess. The
policy is a table by turn and set, and has no place for a secret.

Axes: P pairs of attempts, N episodes or turns, K tokens of a turn, T = U K.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np

from agentrl_jax import losses
from studies.credit import preference, twin_critic
from studies.credit.estimators import TOKENS, Batch, critic_config, with_values
from studies.credit.exact import Episodes, Rules, TablePolicy, draw_calls
from studies.credit.network import (
  Params,
  adam_step,
  fit,
  history_inputs,
  new_network,
  new_state,
  outputs,
  secret_inputs,
)
from studies.credit.replay import Turns, recorded_turns

TURNS = 256  # in a step of every fit
BETA = 0.1  # of preferences
POLYAK = 0.1
DISCOUNT = 1.0  # so that all critics are about the same return
Advantages = Callable[[Batch], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Fitted:
  """A critic's advantages, and the answers that were drawn to fit it."""

  advantages: Advantages
  fresh_answers: int = 0


def seen_secret(
  episodes: Episodes, sees: str, rng: np.random.Generator
) -> np.ndarray | None:
  """Returns the secret of each episode as a critic sees it.

  Args:
    episodes: with the true secrets.
    sees: "nothing", "secret" or "random secret".
    rng: draws the random ones, one for a group.
  """
  if sees == "nothing":
    return None
  if sees == "secret":
    return episodes.secret_N
  num_things = int(episodes.secret_N.max()) + 1
  secret_M = rng.integers(num_things, size=episodes.group_N.max() + 1)
  return secret_M[episodes.group_N]


def inputs_of(
  rules: Rules, episodes: Episodes, secret_N: np.ndarray | None
) -> np.ndarray:
  """Returns a critic's inputs at every turn, [N, U, F]."""
  history_NUF = episodes.at_turns(history_inputs(rules))
  secret_N1 = None if secret_N is None else secret_N[:, None]
  secret_NUC = secret_inputs(rules, secret_N1, episodes.set_NU.shape)
  return np.concatenate([history_NUF, secret_NUC], axis=-1)


def value_loss(params: Params, batch: tuple[jax.Array, ...]) -> jax.Array:
  """Half the mean squared error of V, by `clipped_value_loss`."""
  input_NF, return_N = batch
  _, value_N = outputs(params, input_NF)
  all_N1 = jnp.ones((len(return_N), 1), bool)
  value_N1, return_N1 = value_N[:, None], return_N[:, None]
  loss_N1 = losses.clipped_value_loss(
    value_N1, value_N1, return_N1, all_N1, clip=None
  )
  return losses.token_mean(loss_N1, all_N1).value()


def value_batches(
  rules: Rules,
  episodes: Episodes,
  secret_N: np.ndarray | None,
  *,
  steps: int,
  turns: int,
  rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
  """Draws minibatches of inputs and returns of turns."""
  played_NU = episodes.played_NU
  input_NF = inputs_of(rules, episodes, secret_N)[played_NU]
  return_NU = episodes.reward_NU[:, ::-1].cumsum(axis=1)[:, ::-1]
  return_N = return_NU[played_NU].astype(np.float32)
  place_WN = rng.integers(len(return_N), size=(steps, turns))
  return input_NF[place_WN], return_N[place_WN]


def gae_of(
  params: Params, sees: str, gae_lambda: float, rng: np.random.Generator
) -> Advantages:
  """Returns `turn_gae` with the values of a network."""

  def advantages(batch: Batch) -> np.ndarray:
    rules, episodes = batch.policy.rules, batch.episodes
    input_NUF = inputs_of(rules, episodes, seen_secret(episodes, sees, rng))
    value_NU = np.asarray(outputs(params, input_NUF)[1])
    value_NUK = np.repeat(value_NU[:, :, None], TOKENS, axis=2)
    return with_values(batch, value_NUK, critic_config("turn_gae", gae_lambda))

  return advantages


def fit_value(
  policy: TablePolicy,
  episodes: Episodes,
  *,
  sees: str,
  gae_lambda: float,
  steps: int,
  seed: int,
) -> Fitted:
  """Fits V to the returns of the policy's own episodes."""
  rng, rules = np.random.default_rng(seed), policy.rules
  batches = value_batches(
    rules,
    episodes,
    seen_secret(episodes, sees, rng),
    steps=steps,
    turns=TURNS,
    rng=rng,
  )
  params = new_network(rules, seed=seed)
  params, _ = fit(value_loss, params, new_state(params), batches)
  return Fitted(gae_of(params, sees, gae_lambda, rng))


def token_log_ratio(
  params: Params,
  input_F: jax.Array,
  logprob_A: jax.Array,
  call: jax.Array,
  guess_A: jax.Array,
) -> jax.Array:
  """Returns log pi / present policy of a call's two tokens, [..., K].

  Args:
    params: of the change of the present policy's logits.
    input_F: [..., F].
    logprob_A: of the present policy, [..., A].
    call: [...].
    guess_A: bool, the calls of the second tool.
  """
  changed_A = jax.nn.log_softmax(logprob_A + outputs(params, input_F)[0])

  def tokens(logprob_A: jax.Array) -> jax.Array:
    same_tool_A = guess_A == guess_A[call][..., None]
    tool = jax.nn.logsumexp(logprob_A, axis=-1, where=same_tool_A)
    chosen = jnp.take_along_axis(logprob_A, call[..., None], axis=-1)[..., 0]
    return jnp.stack([tool, chosen - tool], axis=-1)

  return tokens(changed_A) - tokens(logprob_A)


def _attempt_rewards(params, turns, guess_A, *, by_turn: bool):
  """Returns (reward_P, any_P) of attempts by `implicit_reward`."""
  input_PUF, logprob_PUA, call_PU, played_PU = turns
  ratio_PUK = token_log_ratio(params, input_PUF, logprob_PUA, call_PU, guess_A)
  num_attempts, num_turns = call_PU.shape
  shape_PT = (num_attempts, num_turns * TOKENS)
  turn_T = jnp.repeat(jnp.arange(num_turns), TOKENS)
  turns_of = {
    "turn_BT": jnp.broadcast_to(turn_T, shape_PT),
    "num_turns": num_turns,
  }
  reward_PS, any_PS = preference.implicit_reward(
    ratio_PUK.reshape(shape_PT),
    jnp.repeat(played_PU, TOKENS, axis=1),
    average=True,
    **(turns_of if by_turn else {}),
  )
  return reward_PS[:, 0], any_PS[:, 0]


def preference_loss(params: Params, batch, *, by_turn: bool = True):
  """SWEET-RL's loss of a critic: Bradley-Terry of sums of advantages."""
  chosen, rejected, guess_A = batch
  (chosen_P, one_P), (rejected_P, other_P) = (
    _attempt_rewards(params, turns, guess_A, by_turn=by_turn)
    for turns in (chosen, rejected)
  )
  valid_P = one_P & other_P
  loss_P = preference.preference_loss(chosen_P, rejected_P, valid_P, beta=BETA)
  return losses.pair_mean(loss_P, valid_P).value()


# Its code divides by the tokens of the attempt instead of those of the turn.
_mean_of_tokens_loss = functools.partial(preference_loss, by_turn=False)


def attempt_pairs(episodes: Episodes) -> tuple[np.ndarray, np.ndarray]:
  """Returns the places of preferred and rejected attempts of all groups."""
  chosen_N, pair_N = preference.pair_with_best(
    episodes.reward_NU.sum(axis=1),
    episodes.group_N,
    num_groups=int(episodes.group_N.max()) + 1,
    valid_N=np.ones(len(episodes.group_N), bool),
  )
  rejected_P = np.flatnonzero(pair_N)
  return np.asarray(chosen_N)[rejected_P], rejected_P


def preference_critic(
  policy: TablePolicy,
  episodes: Episodes,
  *,
  sees: str,
  steps: int,
  seed: int,
  by_turn: bool = True,
) -> Params:
  """Fits SWEET-RL's critic; without a pair it stays as it starts."""
  rng, rules = np.random.default_rng(seed), policy.rules
  input_NUF = inputs_of(rules, episodes, seen_secret(episodes, sees, rng))
  logprob_NUA = np.log(episodes.at_turns(policy.probability_UXA))
  params = new_network(rules, seed=seed)
  pairs = attempt_pairs(episodes)
  if not len(pairs[0]):
    return params
  num_pairs = max(1, TURNS // (2 * rules.shape[0]))
  place_WP = rng.integers(len(pairs[0]), size=(steps, num_pairs))
  turns = [
    tuple(
      x_N[side[place_WP]]
      for x_N in (
        input_NUF,
        logprob_NUA.astype(np.float32),
        episodes.call_NU,
        episodes.played_NU,
      )
    )
    for side in pairs
  ]
  guess_WA = np.broadcast_to(rules.guess_A, (steps, rules.shape[-1]))
  loss = preference_loss if by_turn else _mean_of_tokens_loss
  batches = (*turns, guess_WA)
  return fit(loss, params, new_state(params), batches)[0]


@jax.jit
def _turn_advantages(params, input_NUF, logprob_NUA, call_NU, guess_A):
  ratio_NUK = token_log_ratio(params, input_NUF, logprob_NUA, call_NU, guess_A)
  return ratio_NUK.mean(axis=-1)


def preference_advantages(
  params: Params,
  policy: TablePolicy,
  input_NUF: np.ndarray,
  set_NU: np.ndarray,
  turn_NU: np.ndarray,
  call_NU: np.ndarray,
) -> np.ndarray:
  """Returns SWEET-RL's advantage of calls, whoever made them, [N, U]."""
  logprob_UXA = np.log(policy.probability_UXA).astype(np.float32)
  return np.asarray(
    _turn_advantages(
      params,
      input_NUF,
      logprob_UXA[turn_NU, set_NU],
      call_NU,
      policy.rules.guess_A,
    )
  )


def fit_preference(
  policy: TablePolicy, episodes: Episodes, *, sees: str, seed: int, **settings
) -> Fitted:
  """Fits SWEET-RL's critic and returns its advantages."""
  params = preference_critic(policy, episodes, sees=sees, seed=seed, **settings)
  rng = np.random.default_rng((seed, 1))

  def advantages(batch: Batch) -> np.ndarray:
    rules, episodes = policy.rules, batch.episodes
    shape = episodes.set_NU.shape
    advantage_NU = preference_advantages(
      params,
      policy,
      inputs_of(rules, episodes, seen_secret(episodes, sees, rng)),
      episodes.set_NU,
      np.broadcast_to(np.arange(shape[1]), shape),
      episodes.call_NU,
    )
    advantage_NU = np.where(episodes.played_NU, advantage_NU, 0)
    return np.repeat(advantage_NU[:, :, None], TOKENS, axis=2)

  return Fitted(advantages)


def twin_outputs(params, input_NF, call_N):
  """Returns Q and V of the twins, [2, N] each."""
  q_2NA, v_2N = jax.vmap(outputs, in_axes=(0, None))(params, input_NF)
  call_2N1 = jnp.broadcast_to(call_N[None, :, None], (2, len(call_N), 1))
  return jnp.take_along_axis(q_2NA, call_2N1, axis=-1)[..., 0], v_2N


def twin_loss(params, slow, batch) -> jax.Array:
  """ArCHer's loss of both Q and V on a minibatch of turns."""
  input_NF, call_N, reward_N, ended_N, next_NF, fresh_N = batch
  all_N = jnp.ones(len(call_N), bool)
  targets = twin_critic.twin_targets(
    reward_N,
    ended_N,
    twin_outputs(slow, next_NF, call_N)[1],
    twin_outputs(slow, input_NF, fresh_N)[0],
    all_N,
    discount=DISCOUNT,
  )
  loss_N = twin_critic.twin_critic_loss(
    *twin_outputs(params, input_NF, call_N), *targets, all_N
  )
  return loss_N.mean()


@jax.jit
def fit_twins(critic, batches):
  """Takes a step of the twins for each minibatch, and one of their copies.

  Args:
    critic: params with two networks, their slow copy, and the optimizer's
      state.
    batches: of `twin_batches`.

  Returns:
    The same, after the last step.
  """

  def step(critic, batch):
    params, slow, state = critic
    gradient = jax.grad(twin_loss)(params, slow, batch)
    params, state = adam_step(gradient, state, params)
    slow = twin_critic.polyak_average(slow, params, rate=POLYAK)
    return (params, slow, state), None

  return jax.lax.scan(step, critic, batches)[0]


def new_twins(rules: Rules, *, seed: int):
  """Returns params of two networks, their slow copy, and a new state."""
  pair = [new_network(rules, seed=s) for s in (2 * seed, 2 * seed + 1)]
  params = jax.tree.map(lambda x, y: jnp.stack([x, y]), *pair)
  return params, params, new_state(params)


def twin_batches(
  policy: TablePolicy, turns: Turns, *, steps: int, rng: np.random.Generator
) -> tuple[np.ndarray, ...]:
  """Cuts turns into minibatches, with an answer of the policy to each state."""
  rules = policy.rules
  policy_NA = policy.probability_UXA[turns.turn_N, turns.set_N]
  next_turn_N = np.minimum(turns.turn_N + 1, rules.shape[0] - 1)
  columns = (
    state_inputs(rules, turns.turn_N, turns.set_N),
    turns.call_N,
    turns.reward_N.astype(np.float32),
    turns.ended_N,
    state_inputs(rules, next_turn_N, turns.next_set_N),
    draw_calls(policy_NA, rng),
  )
  return tuple(x.reshape(steps, -1, *x.shape[1:]) for x in columns)


def state_inputs(
  rules: Rules, turn_N: np.ndarray, set_N: np.ndarray
) -> np.ndarray:
  """Returns the inputs at states, without a secret, [N, F]."""
  history_NF = history_inputs(rules)[turn_N, set_N]
  secret_NC = secret_inputs(rules, None, turn_N.shape)
  return np.concatenate([history_NF, secret_NC], axis=-1)


def twin_advantages(params, rules: Rules, turn_N, set_N, call_N) -> np.ndarray:
  """Returns min Q - min V of calls at states, [N]."""
  input_NF = state_inputs(rules, turn_N, set_N)
  q_2N, v_2N = _twin_outputs(params, input_NF, call_N)
  all_N = np.ones(len(call_N), bool)
  return np.asarray(twin_critic.twin_advantage(q_2N, v_2N, all_N))


_twin_outputs = jax.jit(twin_outputs)


def fit_archer(
  policy: TablePolicy, episodes: Episodes, *, steps: int, seed: int
) -> Fitted:
  """Fits the twins to turns of the policy's own episodes."""
  rng, rules = np.random.default_rng(seed), policy.rules
  turns = recorded_turns(rules, episodes, version=0)
  drawn = turns.at(rng.integers(len(turns), size=steps * TURNS))
  batches = twin_batches(policy, drawn, steps=steps, rng=rng)
  params, _, _ = fit_twins(new_twins(rules, seed=seed), batches)

  def advantages(batch: Batch) -> np.ndarray:
    played_NU = batch.episodes.played_NU
    of_turns = twin_advantages(
      params,
      rules,
      np.nonzero(played_NU)[1],
      batch.episodes.set_NU[played_NU],
      batch.episodes.call_NU[played_NU],
    )
    advantage_NU = np.zeros(played_NU.shape)
    advantage_NU[played_NU] = of_turns
    return np.repeat(advantage_NU[:, :, None], TOKENS, axis=2)

  return Fitted(advantages, fresh_answers=steps * TURNS)


def _values(sees: str, gae_lambda: float):
  return functools.partial(fit_value, sees=sees, gae_lambda=gae_lambda)


def _preferences(sees: str, **settings):
  return functools.partial(fit_preference, sees=sees, **settings)


# Each takes a policy, its episodes, steps and seed.
LEARNED: Mapping[str, Callable[..., Fitted]] = {
  "turn_gae learned": _values("nothing", 0.95),
  "turn_gae learned, lambda 0": _values("nothing", 0.0),
  "turn_gae learned with secret, lambda 0": _values("secret", 0.0),
  "turn_gae learned with random secret, lambda 0": _values(
    "random secret", 0.0
  ),
  "SWEET with secret": _preferences("secret"),
  "SWEET without": _preferences("nothing"),
  "SWEET with random secret": _preferences("random secret"),
  "SWEET with secret, mean of all tokens": _preferences(
    "secret", by_turn=False
  ),
  "ArCHer": fit_archer,
}
