"""Exact values of a policy over the guessing game, by enumeration.

A history of the game comes down to the turn and the set of things that the
answers left possible, so a policy that plays as well as any is a table of
logits by turn and set. Every value below is computed, none is sampled:

- given the secret c, Q(h, a | c) is the expected return after call a in
  history h if the thing is c, and V(h | c) its mean over the policy's calls.
  These are the expectations of returns within a group of attempts at one task;
- the policy does not know c. Q(h, a) is the mean of Q(h, a | c) over the things
  that h left possible, all as likely as each other, and A(h, a) = Q - V is the
  advantage of the policy gradient theorem.

  gradient of J = E[sum_u A(h_u, a_u) grad log pi(a_u | h_u)]
                = E[sum_u A(h_u, a_u | c) grad log pi(a_u | h_u)]

Both are the exact gradient: given h, the call does not depend on c, and
V(h | c) does not depend on the call. The second has more variance.

Axes: U turns, X sets of possible things, C things (each may be the secret), A
calls (all questions, then a guess of each thing), N episodes.
"""

import dataclasses
import functools
import itertools
from collections.abc import Sequence

import numpy as np

from studies.credit.game import GuessingGame


@dataclasses.dataclass(frozen=True, eq=False)
class Rules:
  """The game as tables; set 0 has all things."""

  possible_XC: np.ndarray  # bool, the things of each set
  next_XCA: np.ndarray  # the set after a call, given the secret
  guess_A: np.ndarray  # bool, calls that end the game
  yes_CA: np.ndarray  # bool, the answer to a question, given the secret
  reward_UCA: np.ndarray  # of the call, given the secret

  @property
  def shape(self) -> tuple[int, int, int]:
    """The shape UXA of a policy's table."""
    num_turns, _, num_calls = self.reward_UCA.shape
    return num_turns, len(self.possible_XC), num_calls


def make_rules(game: GuessingGame, *, num_turns: int, reward: str) -> Rules:
  """Makes the tables of a game; the reward is one of `REWARDS`."""
  num_things = len(game.things)
  halves = [
    (game.fitting(question, False), game.fitting(question, True))
    for question in game.questions
  ]
  index_of = _reachable(halves, num_things)
  yes_CA = np.zeros((num_things, len(halves) + num_things), bool)
  for a, (_, yes) in enumerate(halves):
    yes_CA[list(yes), a] = True
  guess_A = np.arange(yes_CA.shape[1]) >= len(halves)
  next_XCA = np.zeros((len(index_of), *yes_CA.shape), np.int32)
  for possible, x in index_of.items():
    for a, (no, yes) in enumerate(halves):
      # A secret that the set excludes may leave nothing; the set then stays.
      after_no, after_yes = (index_of.get(possible & h, x) for h in (no, yes))
      next_XCA[x, :, a] = np.where(yes_CA[:, a], after_yes, after_no)
  possible_XC = np.array(
    [[c in s for c in range(num_things)] for s in index_of]
  )
  reward_UCA = _rewards(guess_A, num_things, num_turns, reward)
  return Rules(possible_XC, next_XCA, guess_A, yes_CA, reward_UCA)


def _reachable(
  halves: Sequence[tuple[frozenset[int], frozenset[int]]], num_things: int
) -> dict[frozenset[int], int]:
  """Numbers the sets that answers can leave; 0 has all things."""
  every = frozenset(range(num_things))
  index_of, queue = {every: 0}, [every]
  for possible in queue:  # grows while it is read
    for half in itertools.chain.from_iterable(halves):
      left = possible & half
      if left and left not in index_of:
        index_of[left] = len(index_of)
        queue.append(left)
  return index_of


def _rewards(
  guess_A: np.ndarray, num_things: int, num_turns: int, reward: str
) -> np.ndarray:
  right_CA = np.zeros((num_things, len(guess_A)), bool)
  right_CA[:, guess_A] = np.eye(num_things, dtype=bool)
  if reward == "success":
    return np.broadcast_to(1.0 * right_CA, (num_turns, *right_CA.shape))
  left_U11 = np.arange(num_turns, 0, -1.0)[:, None, None]
  lost_UCA = np.where(guess_A, -left_U11, -1.0)
  return np.where(right_CA, 0.0, lost_UCA)


def softmax(logit_UXA: np.ndarray) -> np.ndarray:
  """Returns the probability of each call."""
  weight_UXA = np.exp(logit_UXA - logit_UXA.max(axis=-1, keepdims=True))
  return weight_UXA / weight_UXA.sum(axis=-1, keepdims=True)


@dataclasses.dataclass(frozen=True, eq=False)
class Exact:
  """Values of one policy. Entries of secrets that a set excludes mean nothing.

  `secret` in a name says that the value is given the secret.
  """

  policy_UXA: np.ndarray
  secret_action_value_UXCA: np.ndarray  # Q(h, a | c)
  secret_value_UXC: np.ndarray  # V(h | c)
  action_value_UXA: np.ndarray  # Q(h, a)
  value_UX: np.ndarray  # V(h)
  visit_UX: np.ndarray  # the chance that an episode comes to h
  expected_return: float  # J

  @property
  def advantage_UXA(self) -> np.ndarray:
    """A(h, a), of which the policy's mean is 0 in every history."""
    return self.action_value_UXA - self.value_UX[:, :, None]

  @property
  def secret_advantage_UXCA(self) -> np.ndarray:
    """A(h, a | c), of which the policy's mean is 0 as well."""
    return self.secret_action_value_UXCA - self.secret_value_UXC[..., None]

  @property
  def gradient_UXA(self) -> np.ndarray:
    """The gradient of J by the logits."""
    chance_UXA = self.visit_UX[:, :, None] * self.policy_UXA
    return chance_UXA * self.advantage_UXA


def evaluate(rules: Rules, policy_UXA: np.ndarray) -> Exact:
  """Computes all values from the last turn to the first."""
  num_turns, num_sets, num_calls = rules.shape
  num_things = rules.possible_XC.shape[1]
  thing_1C1 = np.arange(num_things)[None, :, None]
  q_UXCA = np.empty((num_turns, num_sets, num_things, num_calls))
  v_UXC = np.empty(q_UXCA.shape[:3])
  later_XC = np.zeros((num_sets, num_things))
  for u in reversed(range(num_turns)):
    after_XCA = later_XC[rules.next_XCA, thing_1C1]
    q_UXCA[u] = rules.reward_UCA[u] + np.where(rules.guess_A, 0, after_XCA)
    v_UXC[u] = later_XC = (q_UXCA[u] @ policy_UXA[u][:, :, None])[..., 0]
  share_XC = rules.possible_XC / rules.possible_XC.sum(axis=1, keepdims=True)
  return Exact(
    policy_UXA=policy_UXA,
    secret_action_value_UXCA=q_UXCA,
    secret_value_UXC=v_UXC,
    action_value_UXA=(share_XC[:, None, :] @ q_UXCA)[:, :, 0],
    value_UX=(v_UXC * share_XC).sum(axis=-1),
    visit_UX=visits(rules, policy_UXA),
    expected_return=float(v_UXC[0, 0].mean()),
  )


@dataclasses.dataclass(frozen=True, eq=False)
class TablePolicy:
  """A policy as a table of logits; its exact values are computed once."""

  rules: Rules
  logit_UXA: np.ndarray

  @functools.cached_property
  def probability_UXA(self) -> np.ndarray:
    """The probability of each call."""
    return softmax(self.logit_UXA)

  @functools.cached_property
  def exact(self) -> Exact:
    """The exact values of the policy."""
    return evaluate(self.rules, self.probability_UXA)


def visits(rules: Rules, policy_UXA: np.ndarray) -> np.ndarray:
  """Returns the chance that an episode comes to each turn and set."""
  num_turns, num_sets, _ = rules.shape
  num_things = rules.possible_XC.shape[1]
  visit_UX = np.zeros((num_turns, num_sets))
  now_XC = np.zeros((num_sets, num_things))
  now_XC[0] = 1 / num_things
  asks = np.flatnonzero(~rules.guess_A)
  thing_C1 = np.arange(num_things)[:, None]
  place_XCA = rules.next_XCA[:, :, asks] * num_things + thing_C1
  for u in range(num_turns):
    visit_UX[u] = now_XC.sum(axis=1)
    chance_XCA = now_XC[:, :, None] * policy_UXA[u][:, None, asks]
    now_XC = np.bincount(
      place_XCA.ravel(), chance_XCA.ravel(), now_XC.size
    ).reshape(now_XC.shape)
  return visit_UX


@dataclasses.dataclass(frozen=True, eq=False)
class Episodes:
  """Sampled episodes; entries of turns that were not played mean nothing."""

  secret_N: np.ndarray
  group_N: np.ndarray
  set_NU: np.ndarray  # before the call
  call_NU: np.ndarray
  reward_NU: np.ndarray  # 0 where not played
  played_NU: np.ndarray  # bool
  yes_NU: np.ndarray  # bool, the answer to a question of this turn

  def at_turns(self, table: np.ndarray) -> np.ndarray:
    """Looks up a table whose first two axes are UX, for every turn."""
    return table[np.arange(self.set_NU.shape[1]), self.set_NU]


def join(parts: Sequence[Episodes]) -> Episodes:
  """Puts episodes one behind the other; the groups of each part are its own."""
  columns = {
    field.name: np.concatenate([getattr(part, field.name) for part in parts])
    for field in dataclasses.fields(Episodes)
  }
  sizes = [part.group_N.max() + 1 for part in parts]
  first = np.cumsum([0, *sizes[:-1]])
  columns["group_N"] = np.concatenate(
    [part.group_N + offset for part, offset in zip(parts, first, strict=True)]
  )
  return Episodes(**columns)


def draw_calls(policy_NA: np.ndarray, rng: np.random.Generator) -> np.ndarray:
  """Draws a call from each row of probabilities."""
  cumulative_NA = policy_NA.cumsum(axis=1)
  draw_N1 = rng.random((len(policy_NA), 1))
  return np.minimum(
    (cumulative_NA < draw_N1).sum(axis=1), policy_NA.shape[1] - 1
  )


def play(
  policy: TablePolicy, *, attempts: int, rng: np.random.Generator
) -> Episodes:
  """Plays a group of attempts for every secret."""
  rules, policy_UXA = policy.rules, policy.probability_UXA
  num_turns = rules.shape[0]
  num_things = rules.possible_XC.shape[1]
  secret_N = np.repeat(np.arange(num_things), attempts)
  set_N = np.zeros_like(secret_N)
  playing_N = np.ones(len(secret_N), bool)
  turns = []
  for u in range(num_turns):
    call_N = draw_calls(policy_UXA[u, set_N], rng)
    reward_N = np.where(playing_N, rules.reward_UCA[u, secret_N, call_N], 0)
    after_N = rules.next_XCA[set_N, secret_N, call_N]
    yes_N = rules.yes_CA[secret_N, call_N]
    turns.append((set_N, call_N, reward_N, playing_N, yes_N))
    playing_N = playing_N & ~rules.guess_A[call_N]
    set_N = np.where(playing_N, after_N, set_N)
  columns = (np.stack(x, axis=1) for x in zip(*turns, strict=True))
  return Episodes(secret_N, secret_N, *columns)
