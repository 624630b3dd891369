r"""Filters of groups on the risky bandit, where a group's spread is its luck.

  python -m studies.bandit_filters          # a table for studies/siblings.md
  python -m studies.bandit_filters --seeds=64 --learning_rate=0.05

The policy is one logit, x: it pulls the risky machine with probability
q = sigmoid(x). So the effect of a filter is seen without tokens, prompts and a
network. Groups, advantages and filters are those of training
(`agentrl_jax.losses`), on the pays of `studies/environments/bandit`. Columns:

- push: expected gradient of x at q = 1/2; above 0 it is towards the risky
  machine;
- kept: share of the groups that are trained on, in all updates;
- success: probability of the machine with the higher expected pay at the end;
- wrong: share of seeds that end below 1/2;
- alarm: share of seeds in which RAGEN's rule of a collapse is broken: the
  spread within groups has fallen below a tenth of that of the first batches.

Axes: N attempts of a batch, M groups, U updates, S seeds.
"""

import argparse
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax

from agentrl_jax import losses
from agentrl_jax.train.collapse.alarm import (
  STD_BATCHES,
  AlarmState,
  CollapseAlarmConfig,
  Observed,
  advance,
)
from launch.processes.terminal import plain_console
from studies.random_filter import keep_random_groups
from studies.tables import Observation, table

CONSOLE = plain_console(soft_wrap=True)
SURE = 0.1  # pay of the other machine
CHANCES = (0.25, 0.04)  # of the risky machine: it is better, then worse
NUM_GROUPS, GROUP_SIZE = 8, 16  # RAGEN's
_GROUP_N = np.repeat(np.arange(NUM_GROUPS), GROUP_SIZE)
_PUSH_BATCHES = 4096
_ALARM = CollapseAlarmConfig()

Filter = Callable[[jax.Array], jax.Array]  # from rewards to groups that stay


def _keep_all(reward_N: jax.Array) -> jax.Array:
  del reward_N
  return jnp.ones(NUM_GROUPS, bool)


def _keep(function: Callable[..., jax.Array], **settings: float) -> Filter:
  return lambda reward_N: function(
    reward_N,
    _GROUP_N,
    num_groups=NUM_GROUPS,
    valid_N=jnp.ones(reward_N.shape, bool),
    **settings,
  )


ARMS: Mapping[str, Filter] = {
  "all": _keep_all,
  "top_share": _keep(losses.keep_top_groups, share=0.25),
  "top_signal": _keep(losses.keep_top_signal, share=0.9),
  "top_softmax": _keep(losses.keep_top_softmax, share=0.9),
  "random": _keep(
    partial(keep_random_groups, num_tokens_N=jnp.ones(_GROUP_N.size, int)),
    share=0.9,
  ),
}


@dataclasses.dataclass(frozen=True)
class Outcome:
  """Numbers of one arm, as the module's docstring names them."""

  push: float
  kept: float
  success_S: np.ndarray
  alarm_S: np.ndarray


def gradient(
  x: jax.Array,
  key: jax.Array,
  *,
  keep: Filter,
  chance: float,
  scale_by_std: bool,
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Plays a batch.

  Returns:
    gradient of x, to be ascended; share of groups kept; mean std of a group.
  """
  pull_key, luck_key = jax.random.split(key)
  shape = _GROUP_N.shape
  risky_N = jax.random.bernoulli(pull_key, jax.nn.sigmoid(x), shape)
  paid_N = jax.random.bernoulli(luck_key, chance, shape)
  reward_N = jnp.where(risky_N, paid_N.astype(jnp.float32), SURE)
  every_N = jnp.ones(shape, bool)
  keep_M = keep(reward_N)
  advantage_N = losses.group_advantage(
    reward_N,
    _GROUP_N,
    num_groups=NUM_GROUPS,
    valid_N=every_N,
    scale_by_std=scale_by_std,
  )
  # d log p / dx of a pull is 1 - q if it is the risky one, else -q. The mean is
  # over what is trained on, as in `losses.reductions`.
  score_N = risky_N - jax.nn.sigmoid(x)
  kept_N = keep_M[_GROUP_N]
  total = jnp.sum(advantage_N * score_N, where=kept_N)
  spread_M = losses.group_std(
    reward_N, _GROUP_N, num_groups=NUM_GROUPS, valid_N=every_N
  )
  return (
    total / jnp.maximum(jnp.sum(kept_N), 1),
    jnp.mean(keep_M),
    jnp.mean(spread_M),
  )


def learn(
  keep: Filter,
  *,
  chance: float,
  scale_by_std: bool,
  num_updates: int,
  learning_rate: float,
  seeds: int,
) -> Outcome:
  """Learns with Adam from q = 1/2, once for each seed."""
  play = partial(gradient, keep=keep, chance=chance, scale_by_std=scale_by_std)
  optimizer = optax.adam(learning_rate)

  def run(key: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    def update(
      carry: tuple[jax.Array, optax.OptState], key: jax.Array
    ) -> tuple[tuple[jax.Array, optax.OptState], tuple[jax.Array, jax.Array]]:
      x, state = carry
      ascent, kept, spread = play(x, key)
      step, state = optimizer.update(-ascent, state)
      return (x + step, state), (kept, spread)

    x = jnp.zeros(())
    (x, _), (kept_U, spread_U) = jax.lax.scan(
      update, (x, optimizer.init(x)), jax.random.split(key, num_updates)
    )
    return jax.nn.sigmoid(x), jnp.mean(kept_U), spread_U

  q_S, kept_S, spread_SU = jax.jit(jax.vmap(run))(
    jax.random.split(jax.random.key(0), seeds)
  )
  push_P, _, _ = jax.jit(jax.vmap(partial(play, jnp.zeros(()))))(
    jax.random.split(jax.random.key(1), _PUSH_BATCHES)
  )
  q_S = np.asarray(q_S)
  return Outcome(
    push=float(push_P.mean()),
    kept=float(kept_S.mean()),
    success_S=q_S if chance > SURE else 1 - q_S,
    alarm_S=np.array([is_raised(each) for each in np.asarray(spread_SU)]),
  )


def is_raised(spread_U: Sequence[float]) -> bool:
  """True if the collapse alarm's rule of spread is broken at some update."""
  state = AlarmState()
  for spread in spread_U:
    state = advance(state, _ALARM, Observed(std=float(spread), success=None))
    if state.low_std >= STD_BATCHES:
      return True
  return False


def observations(
  *, num_updates: int, learning_rate: float, seeds: int
) -> Iterator[Observation]:
  """Learns in each arm, at each chance and with each kind of advantage."""
  for scale_by_std in (True, False):
    for chance in CHANCES:
      for name, keep in ARMS.items():
        found = learn(
          keep,
          chance=chance,
          scale_by_std=scale_by_std,
          num_updates=num_updates,
          learning_rate=learning_rate,
          seeds=seeds,
        )
        yield {
          "filter": name,
          "chance": chance,
          "divided by std": "yes" if scale_by_std else "no",
          "push": found.push,
          "kept": found.kept,
          "success": float(found.success_S.mean()),
          "success_half": float(
            1.96 * found.success_S.std(ddof=1) / np.sqrt(seeds)
          ),
          "wrong": float(np.mean(found.success_S < 0.5)),
          "alarm": float(np.mean(found.alarm_S)),
        }


def main(arguments: Sequence[str] | None = None) -> None:
  """Parses the command line and prints the table."""
  parser = argparse.ArgumentParser(
    prog="python -m studies.bandit_filters",
    description=__doc__.partition("\n")[0],
  )
  parser.add_argument("--updates", type=int, default=100)
  parser.add_argument("--learning_rate", type=float, default=0.1)
  parser.add_argument("--seeds", type=int, default=256)
  given = parser.parse_args(arguments)
  found = list(
    observations(
      num_updates=given.updates,
      learning_rate=given.learning_rate,
      seeds=given.seeds,
    )
  )
  by = ("filter", "chance", "divided by std")
  columns = ("push", "kept", "success", "success_half", "wrong", "alarm")
  CONSOLE.print(table(found, by, columns))


if __name__ == "__main__":
  main()
