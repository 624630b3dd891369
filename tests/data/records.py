"""Random records for tests, from a seed."""

import dataclasses

import numpy as np

from agentrl_jax.data.records import Group, Status, Task, Trajectory, Turn


def make_turn(rng, *, observed: int, sampled: int, version: int = 0) -> Turn:
  return Turn(
    observation=rng.integers(1, 50, observed).astype(np.int32),
    sampled=rng.integers(1, 50, sampled).astype(np.int32),
    behavior_logprob=-rng.random(sampled).astype(np.float32),
    raw_logprob=-rng.random(sampled).astype(np.float32),
    version=np.full(sampled, version, np.int32),
  )


def make_trajectory(
  rng, *, task="a", group="g", attempt=0, turns=2, reward=None, status=None
) -> Trajectory:
  return Trajectory(
    task=Task(task, "train", 7),
    group_id=group,
    attempt=attempt,
    seed=int(rng.integers(1 << 40)),
    turns=tuple(
      make_turn(
        rng, observed=int(rng.integers(1, 9)), sampled=int(rng.integers(1, 6))
      )
      for _ in range(turns)
    ),
    status=status or Status.COMPLETED,
    reward=float(rng.random()) if reward is None else reward,
    metrics={"success": 1.0},
    transcript=({"role": "user", "content": "hé"},),
    policy_slot_weights=(0.75, 0.25),
  )


def make_group(rng, *, id="g", task="a", size=4, **fields) -> Group:
  members = tuple(
    make_trajectory(rng, task=task, group=id, attempt=n, **fields)
    for n in range(size)
  )
  return Group(id, Task(task, "train", 7), members, num_masked=1)


def with_experts(group: Group) -> Group:
  """The group, the first turns of whose attempts have experts."""

  def routed(trajectory: Trajectory) -> Trajectory:
    first, *others = trajectory.turns
    size = len(first.observation) + len(first.sampled)
    numbers = np.arange(size * 6, dtype=np.uint8).reshape(size, 3, 2)
    first = dataclasses.replace(first, experts=numbers)
    return dataclasses.replace(trajectory, turns=(first, *others))

  members = tuple(map(routed, group.trajectories))
  return dataclasses.replace(group, trajectories=members)


def make_several_lines(group: Group, *, num_lines=2) -> Group:
  """The group, whose turns are on several lines in turn, with roles."""
  roles = ("plan", "write", *(f"role{n}" for n in range(2, num_lines)))

  def spread(trajectory: Trajectory) -> Trajectory:
    turns = [
      dataclasses.replace(turn, line=n % num_lines)
      for n, turn in enumerate(trajectory.turns)
    ]
    return dataclasses.replace(
      trajectory, turns=tuple(turns), roles=roles[:num_lines]
    )

  members = tuple(map(spread, group.trajectories))
  return dataclasses.replace(group, trajectories=members)


def make_branching_group(
  rng, *, id="g", task="a", size=6, prompt=(), **fields
) -> Group:
  """A group whose attempts share `prompt`, and turns with earlier attempts.

  Some leave an earlier one inside an answer, one equals another, and one is the
  beginning of another. Log-probabilities of the sampler differ everywhere.
  """
  first = make_trajectory(rng, task=task, group=id, turns=3, **fields)
  turn = first.turns[0]
  observation = np.concatenate([np.asarray(prompt, np.int32), turn.observation])
  turn = dataclasses.replace(turn, observation=observation)
  members = [dataclasses.replace(first, turns=(turn, *first.turns[1:]))]
  for attempt in range(1, size):
    other = members[int(rng.integers(len(members)))]
    kept = int(rng.integers(len(other.turns)))
    turns = [*other.turns[:kept], _left(rng, other.turns[kept])]
    turns += make_trajectory(rng, turns=2 - kept).turns if kept < 2 else ()
    if attempt == size - 2:
      turns = list(other.turns)
    if attempt == size - 1:
      turns = list(other.turns[:1])
    members.append(
      dataclasses.replace(
        first,
        attempt=attempt,
        reward=float(rng.random()),
        turns=tuple(with_answer(rng, turn, turn.sampled) for turn in turns),
      )
    )
  return Group(id, Task(task, "train", 7), tuple(members))


def _left(rng, turn: Turn) -> Turn:
  """The turn up to a token of its answer, and then another token."""
  kept = turn.sampled[: int(rng.integers(len(turn.sampled)))]
  new = make_turn(rng, observed=1, sampled=2).sampled
  return with_answer(rng, turn, np.concatenate([kept, new]))


def with_answer(rng, turn: Turn, sampled) -> Turn:
  """The turn with another answer, and new log-probabilities."""
  logprob = -rng.random(len(sampled)).astype(np.float32)
  return dataclasses.replace(
    turn,
    sampled=sampled,
    behavior_logprob=logprob,
    raw_logprob=logprob,
    version=np.zeros(len(sampled), np.int32),
  )
