"""Cases of the statistics of tasks, and of whole batches."""

import math

import numpy as np

from tests.golden.vectors.cases import Case, arrays, case
from tests.golden.vectors.vectors_advantages import GROUPS
from tests.reference.advantages import group_advantages, task_moments

NAN = math.nan

FIELDS = ("weight_I", "mean_I", "variance_I")

# Task 0 has a spread, task 1 is constant, task 2 is absent.
ADVANTAGE_BT = [[1.0, -0.5, 2.0, NAN], [0.25, 0.25, NAN, 0.5], [NAN] * 4]
TASK_BT = [[0, 0, 0, 9], [1, 1, 9, 0], [9] * 4]
MASK_BT = [[True] * 3 + [False], [True, True, False, True], [False] * 4]
TOKENS = {"advantage_BT": ADVANTAGE_BT, "task_BT": TASK_BT, "mask_BT": MASK_BT}

# The fourth attempt is not valid, the fifth has no trained token.
ATTEMPTS = {
  "advantage_N": [1.0, -1.0, 0.5, NAN, 3.0, 0.25],
  "task_N": [0, 0, 0, 0, 0, 1],
  "num_tokens_N": [1, 5, 2, 4, 0, 3],
  "valid_N": [True, True, True, False, True, True],
}


def cases() -> dict[str, list[Case]]:
  return {
    "advantages/normalisation": [
      *_normalisation(),
      *_whitening(),
      *_moments(),
      *_reinforce_plus_plus(),
    ]
  }


def _moments() -> list[Case]:
  measured = {
    "x": [1.0, -0.5, 2.0, NAN, 0.25],
    "task": [0, 0, 0, 0, 1],
    "weight": [1, 3, 4, 0, 2],
  }
  batches = [
    {"x": [1.0, 3.0, 0.5, 1.5], "task": [0, 0, 2, 2], "weight": [1] * 4},
    {"x": [3.0, 5.0, 7.0, 1.5], "task": [0, 0, 0, 1], "weight": [1] * 4},
  ]
  running, batch = (
    dict(zip(FIELDS, task_moments.measure_tasks(**b, num_tasks=4), strict=True))
    for b in map(arrays, batches)
  )

  def blend(decay):
    seen = [task_moments.entries(**arrays(b)) for b in batches]
    return task_moments.moments_of(seen, 4, decay)

  return [
    case(
      "measure_tasks",
      "Weights count how often an entry was seen; task 2 was not.",
      task_moments.measure_tasks,
      {**measured, "num_tasks": 3},
      names=FIELDS,
    ),
    case(
      "unseen_tasks",
      "Where running moments start.",
      lambda num_tasks: task_moments.moments_of([], num_tasks),
      {"num_tasks": 2},
      names=FIELDS,
    ),
    case(
      "blend_moments",
      "Task 0 is in both; task 1 is new; task 2 is absent from the batch and "
      "keeps its moments; task 3 was never seen.",
      blend,
      {"running": running, "batch": batch, "decay": 0.5},
      names=FIELDS,
    ),
  ]


def _normalisation() -> list[Case]:
  def of_attempts(
    advantage_N, task_N, num_tokens_N, valid_N, num_tasks, over="tokens"
  ):
    """Each attempt, laid out as its tokens, or as one token."""
    counts_N = valid_N & (num_tokens_N > 0)
    length_N = num_tokens_N if over == "tokens" else np.ones_like(num_tokens_N)
    mask_NT = np.arange(length_N.max()) < (length_N * counts_N)[:, None]
    advantage_NT, task_NT = (
      np.broadcast_to(x_N[:, None], mask_NT.shape)
      for x_N in (advantage_N, task_N)
    )
    return group_advantages.task_normalise(advantage_NT, task_NT, mask_NT)[:, 0]

  def by_moments(x, task, mask, moments, center=True, scale=True):
    moments = [moments[name] for name in FIELDS]
    return task_moments.normalise_by_moments(
      x, task, mask, moments, center=center, scale=scale, epsilon=1e-6
    )

  moments = {
    "weight_I": [8.0, 4.0],
    "mean_I": [0.5, 0.25],
    "variance_I": [0.25, 0.0],
  }
  return [
    case(
      "task_normalise",
      "Task 1 is constant and gets 0.",
      group_advantages.task_normalise,
      {**TOKENS, "num_tasks": 3},
    ),
    case(
      "task_normalise",
      "In units of the deviation, the mean left where it is.",
      group_advantages.task_normalise,
      {**TOKENS, "num_tasks": 3, "center": False},
    ),
    *(
      case(
        "task_normalise_weighted",
        f"Statistics over {over}.",
        of_attempts,
        {**ATTEMPTS, "num_tasks": 2, "over": over},
      )
      for over in ("tokens", "trajectories")
    ),
    case(
      "normalise_by_moments",
      "Moments of other batches; task 1 had no variance in them.",
      by_moments,
      {
        "x": [1.0, 0.0, NAN, 1.0],
        "task": [0, 0, 0, 1],
        "mask": [True, True, False, True],
        "moments": moments,
      },
    ),
  ]


def _whitening() -> list[Case]:
  def of_attempts(x_N, num_tokens_N, valid_N):
    mask_NT = np.arange(num_tokens_N.max()) < num_tokens_N[:, None]
    mask_NT &= valid_N[:, None]
    x_NT = np.broadcast_to(x_N[:, None], mask_NT.shape)
    return task_moments.whiten(x_NT, mask_NT)[:, 0]

  tokens = {"x_BT": ADVANTAGE_BT, "mask_BT": MASK_BT}
  return [
    case("whiten", "Mean 0, variance 1.", task_moments.whiten, tokens),
    case(
      "whiten",
      "Variance 1, and the mean left where it was.",
      task_moments.whiten,
      {**tokens, "center": False},
    ),
    case(
      "whiten",
      "Nothing to compare: 0.",
      task_moments.whiten,
      {"x_BT": [[2.0, 2.0, NAN]], "mask_BT": [[True, True, False]]},
    ),
    case(
      "whiten_weighted",
      "Attempts, each counted once per trained token.",
      of_attempts,
      {
        "x_N": ATTEMPTS["advantage_N"],
        **{name: ATTEMPTS[name] for name in ("num_tokens_N", "valid_N")},
      },
    ),
  ]


def _reinforce_plus_plus() -> list[Case]:
  return [
    case(
      "reinforce_plus_plus_advantage",
      "Two sequences in the first row, an observation in one; then padding.",
      task_moments.reinforce_plus_plus_advantage,
      {
        "reward_BT": [[0.0, NAN, 1.0, 0.5, -0.5], [NAN] * 5],
        "mask_BT": [[True, False, True, True, True], [False] * 5],
        "discount": 0.5,
        "segment_BT": [[0, 0, 0, 1, 1], [0] * 5],
      },
    ),
    case(
      "reinforce_plus_plus_baseline_advantage",
      "The groups of group_advantage; attempts count once per trained token.",
      task_moments.reinforce_plus_plus_baseline_advantage,
      {**GROUPS, "num_tokens_N": [3, 1, 2, 5, 2, 0, 1]},
    ),
  ]
