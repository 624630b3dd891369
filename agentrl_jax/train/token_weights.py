"""The weight of each token's surrogate, from statistics of the whole batch.

A quantile, a rank or a mean over tokens must not depend on how the batch is cut
into micro-batches, so it is computed here, before the cut: once per batch, with
the params as the batch finds them. arXiv:2506.01939 for example trains on the
fifth of the batch's tokens that have the highest entropy.

Axes: R rows of the whole batch, T tokens.
"""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from agentrl_jax.errors import NotFinite
from agentrl_jax.model import sharding
from agentrl_jax.model.policy import Params, Policy
from agentrl_jax.train.batches import add_fields
from agentrl_jax.train.critic import pad_rows
from agentrl_jax.train.loss_config import LossConfig
from agentrl_jax.train.objective import TrainBatch
from agentrl_jax.train.placement import on_mesh
from agentrl_jax.train.surrogates import sequences_of, token_inputs
from agentrl_jax.train.token_logprobs import token_logprobs

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
