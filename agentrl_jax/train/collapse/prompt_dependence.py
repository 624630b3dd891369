"""Measures whether the policy's answers still depend on their prompts.

First answers of a batch are scored under the first prompts of other groups,
with the params before the update. Pairs are packed as trajectories are, so that
a prompt is computed once for many answers, and micro-batches have the shapes of
training. Prompts are compared within a task: that the answers of two tasks
differ says nothing about collapse.

  cost = (N prompts + N^2 answers), in tokens, of one forward pass

for N answers of one task, less where answers begin alike. If a prompt is much
longer than `train.sharing` answers, it is computed more than once.

Axes: N answers, P pairs, R rows of all micro-batches, B of one, T tokens, A
tokens of an answer, M masks, X words of bits.
"""

import collections
import dataclasses
from collections.abc import Callable, Mapping, Sequence

import jax
import numpy as np
from jax.sharding import Mesh

from agentrl_jax import losses
from agentrl_jax.data.grammar.answer_masks import AnswerMasks
from agentrl_jax.data.grammar.grammars import Grammars
from agentrl_jax.data.packing import Rows, pack
from agentrl_jax.data.records import Group, Trajectory, Turn
from agentrl_jax.errors import ConfigError
from agentrl_jax.losses import Mean
from agentrl_jax.model import sharding
from agentrl_jax.model.policy import Params, Policy
from agentrl_jax.train.token_logprobs import token_logprobs
from agentrl_jax.train.train_batch import (
  BatchConfig,
  TrainBatch,
  cut,
  grammar_masks,
  on_mesh,
)

TOPS = (1, 2, 4, 8)  # prompts among which an answer's own is looked for
_PAIRS = 512  # packed at once, which bounds the memory of the host


@dataclasses.dataclass(frozen=True, kw_only=True)
class MutualInformationConfig:
  """The `mutual_information` section; `configs` explains each key."""

  every: int  # updates; 0 measures nothing
  num_answers: int
  max_tokens: int

  def __post_init__(self) -> None:
    for name, least, why in (
      ("every", 0, "0 measures nothing"),
      ("num_answers", 2, "an answer is scored under the others' prompts"),
      ("max_tokens", 1, "it is the part of an answer that is scored"),
    ):
      if getattr(self, name) < least:
        raise ConfigError(
          f"mutual_information.{name}={getattr(self, name)} must be {least} or "
          f"more: {why}"
        )

  def is_due(self, version: int, stride: int) -> bool:
    """Returns true for the batch of `version`, every `stride` versions one."""
    return self.every > 0 and version % self.every < stride


class PromptDependence:
  """Scores answers under other prompts; holds no state of training."""

  def __init__(
    self,
    policy: Policy,
    config: MutualInformationConfig,
    *,
    batch: BatchConfig,
    temperature: float,
    tiles: Mapping[str, int | None],
    make_grammars: Callable[[], Grammars] | None = None,
  ):
    """`make_grammars` is called for answers that had to follow a grammar."""
    self._config, self._batch = config, batch
    self._make_grammars, self._mesh = make_grammars, policy.mesh

    def logprobs(params: Params, micro_batch: TrainBatch) -> jax.Array:
      return token_logprobs(
        policy, params, micro_batch.batch, temperature=temperature, **tiles
      )[0]

    # Arrays that the host reads are replicated, so every process has them all.
    self._logprobs = jax.jit(
      logprobs,
      out_shardings=self._mesh and sharding.replicated(self._mesh),
      compiler_options=policy.compiler_options,
    )

  def measure(
    self, groups: Sequence[Group], params: Params
  ) -> dict[str, float]:
    """Returns the metrics of a batch; none without two answers of a task.

    Every learner process calls it with the same groups, and waits for the
    result. `params` are the whole ones, with adapters if there are any.
    """
    answers = first_answers(groups, self._config)
    valid_NN = comparable(answers, self._batch.row_length)
    if not valid_NN.any():
      return {}
    logprob_NN = self._score(answers, valid_NN, params)
    missing = self._config.num_answers - len(answers)  # one shape compiles
    valid_NN = np.pad(valid_NN, (0, missing))
    tokens = [len(answer.turns[0].sampled) for answer in answers]
    tasks = [answer.task.name for answer in answers]
    return dependence_metrics(
      np.pad(logprob_NN, (0, missing)),
      valid_NN,
      np.pad(np.array(tokens, np.float32), (0, missing)),
      np.array(tasks + [""] * missing),
    )

  def _score(
    self, answers: Sequence[Trajectory], valid_NN: np.ndarray, params: Params
  ) -> np.ndarray:
    """Returns log p of answer i under prompt j in nats, 0 if not valid."""
    logprob_NN = np.zeros(valid_NN.shape, np.float32)
    allowed = _AllowedTokens(
      answers, self._make_grammars, self._batch, self._mesh
    )
    # By prompt, so that those packed together share theirs.
    prompt_P, answer_P = np.nonzero(valid_NN.T)
    for start in range(0, len(answer_P), _PAIRS):
      part = slice(start, start + _PAIRS)
      i_P, j_P = answer_P[part], prompt_P[part]
      rows = pack(
        [_under(answers[i], answers[j]) for i, j in zip(i_P, j_P, strict=True)],
        row_length=self._batch.row_length,
        rows_multiple=self._batch.micro_batch,
        sharing=self._batch.sharing,
      )
      masks = None
      if allowed.mask_MX is not None:
        masks = AnswerMasks(allowed.place(rows, i_P), allowed.mask_MX)
      logprob_RT = np.concatenate(
        [
          self._logprobs(params, on_mesh(micro_batch, self._mesh))
          for micro_batch in cut(
            rows,
            np.zeros(rows.mask.shape, np.float32),
            self._batch.micro_batch,
            masks,
          )
        ]
      )
      pair = rows.trajectory[rows.mask]
      np.add.at(logprob_NN, (i_P[pair], j_P[pair]), logprob_RT[rows.mask])
    return logprob_NN


class _AllowedTokens:
  """Masks of the answers' grammars, computed once for all their prompts.

  Under each prompt an answer keeps the grammar that it was sampled with: the
  measures are about what the policy chooses among the tokens left to it.
  """

  def __init__(
    self,
    answers: Sequence[Trajectory],
    make_grammars: Callable[[], Grammars] | None,
    batch: BatchConfig,
    mesh: Mesh | None,
  ):
    rows = pack(answers, row_length=batch.row_length)
    masks = grammar_masks(rows, answers, make_grammars, mesh)
    self.mask_MX = masks and masks.mask_MX
    sizes = [len(answer.turns[0].sampled) for answer in answers]
    self._allowed: list[np.ndarray] = []  # of each answer [A]
    if masks is not None:
      allowed = masks.allowed_RT.flat[_answer_tokens(rows)]
      self._allowed = np.split(allowed, np.cumsum(sizes)[:-1])

  def place(self, rows: Rows, answer_P: np.ndarray) -> np.ndarray:
    """Returns the rows of the table, int32 [R, T], of packed pairs."""
    allowed_RT = np.zeros(rows.mask.shape, np.int32)
    allowed_RT.flat[_answer_tokens(rows)] = np.concatenate(
      [self._allowed[i] for i in answer_P]
    )
    return allowed_RT


def first_answers(
  groups: Sequence[Group], config: MutualInformationConfig
) -> list[Trajectory]:
  """Returns first answers of different groups, as trajectories of one turn.

  No two have the same prompt. Answers are those of policy slot 0, the one that
  is trained, cut to `max_tokens`; groups in which it did not answer first are
  left out.
  """
  chosen: dict[bytes, Trajectory] = {}
  for group in groups:
    for trajectory in group.trajectories:
      turn = next(iter(trajectory.turns), None)
      if turn is not None and turn.policy_slot == 0 and len(turn.sampled):
        first = dataclasses.replace(
          trajectory, turns=(_beginning(turn, config.max_tokens),)
        )
        chosen.setdefault(turn.observation.tobytes(), first)
        break
    if len(chosen) == config.num_answers:
      break
  return list(chosen.values())


def comparable(answers: Sequence[Trajectory], row_length: int) -> np.ndarray:
  """Returns the pairs to score, bool: row i an answer, column j a prompt.

  They are those of one task that fit in a row of training. A task with a single
  answer has nothing to compare.
  """
  number = collections.Counter(answer.task.name for answer in answers)
  valid_NN = np.zeros((len(answers), len(answers)), bool)
  for i, answer in enumerate(answers):
    num_sampled = len(answer.turns[0].sampled)
    for j, other in enumerate(answers):
      valid_NN[i, j] = (
        answer.task.name == other.task.name
        and number[answer.task.name] > 1
        and len(other.turns[0].observation) + num_sampled <= row_length
      )
  return valid_NN


def dependence_metrics(
  logprob_NN: np.ndarray,
  valid_NN: np.ndarray,
  num_tokens_N: np.ndarray,
  task_N: np.ndarray,
) -> dict[str, float]:
  """Returns the metrics by name; of each task the mutual information alone."""
  means = _measure(logprob_NN, valid_NN, num_tokens_N)
  metrics = {f"policy/{name}": x for name, x in means.items()}
  for task in sorted(set(task_N[np.diagonal(valid_NN)].tolist())):
    of_task_NN = valid_NN & (task_N == task)[:, None]
    means = _measure(logprob_NN, of_task_NN, num_tokens_N)
    name = f"policy/mutual_information/{task}"
    metrics[name] = means["mutual_information"]
  return {name: float(mean.value()) for name, mean in metrics.items()}


@jax.jit
def _measure(
  logprob_NN: jax.Array, valid_NN: jax.Array, num_tokens_N: jax.Array
) -> dict[str, Mean]:
  whole = losses.mutual_information(logprob_NN, valid_NN)
  by_token = losses.mutual_information(
    logprob_NN, valid_NN, num_tokens_N=num_tokens_N
  )
  means = {
    "mutual_information": whole["information"],
    "mutual_information_bound": whole["bound"],
    "mutual_information_by_token": by_token["information"],
  }
  for k in TOPS:
    retrieval = losses.retrieval_accuracy(logprob_NN, valid_NN, k=k)
    means[f"prompt_retrieval/top{k}"] = retrieval["accuracy"]
    means[f"prompt_retrieval_by_chance/top{k}"] = retrieval["chance"]
  return means


def _beginning(turn: Turn, max_tokens: int) -> Turn:
  """Returns the turn with the first tokens of its answer."""
  fields = ("sampled", "behavior_logprob", "raw_logprob", "version")
  return dataclasses.replace(
    turn, **{name: getattr(turn, name)[:max_tokens] for name in fields}
  )


def _under(answer: Trajectory, other: Trajectory) -> Trajectory:
  """Returns an answer after the prompt of another."""
  turn = dataclasses.replace(
    answer.turns[0], observation=other.turns[0].observation
  )
  return dataclasses.replace(answer, turns=(turn,))


def _answer_tokens(rows: Rows) -> np.ndarray:
  """Returns flat indices of the sampled tokens, trajectory by trajectory."""
  index = np.flatnonzero(rows.mask)
  return index[np.argsort(rows.trajectory.flat[index], kind="stable")]
