"""Programs that the policy and its reference run over a batch before an update.

Log-probabilities, values and weights of tokens are of the params before the
update. They are computed micro-batch by micro-batch; what the host reads is
replicated, so that every process has all of it.

Axes: R rows of the whole batch, B rows of a micro-batch, T tokens.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from agentrl_jax import losses
from agentrl_jax.errors import NotFinite
from agentrl_jax.model import sharding
from agentrl_jax.model.policy import Params, Policy
from agentrl_jax.train.advantages import pad_rows
from agentrl_jax.train.config.loss import LossConfig
from agentrl_jax.train.objective import (
  reward_kl_estimator,
  sequences_of,
  token_inputs,
)
from agentrl_jax.train.token_logprobs import (
  hidden_states,
  token_logprobs,
  token_values,
)
from agentrl_jax.train.train_batch import TrainBatch, cut, on_mesh, self_routed
from agentrl_jax.train.weights.reference import Reference

_Outputs = tuple[jax.Array, jax.Array]  # log-probability and entropy, [B, T]


class BatchPrograms:
  """The programs of one policy, for micro-batches of one size."""

  def __init__(
    self,
    policy: Policy,
    loss: LossConfig,
    *,
    temperature: float,
    micro_batch: int,
    reference: Reference | None,
  ):
    """The KL term pulls towards `reference`."""
    self._loss, self._reference = loss, reference
    self._token_weight = loss.custom_function("token_weight")
    self._mesh, self._size = policy.mesh, micro_batch

    def outputs(of: Policy, params: Params, x: TrainBatch) -> _Outputs:
      return token_logprobs(
        of, params, x.batch, temperature=temperature, **loss.tiles
      )

    def reference_logprobs(params: Params, x: TrainBatch) -> jax.Array:
      assert reference is not None
      return outputs(reference.policy, params, self_routed(x))[0]

    def costs(params: Params, x: TrainBatch) -> jax.Array:
      batch = x.batch
      log_ratio_BT = losses.log_ratio(
        batch.behavior_logprob, reference_logprobs(params, x), batch.mask
      )
      return -losses.kl_penalised_reward(
        jnp.zeros(batch.mask.shape),
        log_ratio_BT,
        batch.mask,
        coefficient=loss.kl_coefficient,
        estimator=reward_kl_estimator(loss, batch.mask),
      )

    def values(params: Params, x: TrainBatch) -> jax.Array:
      hidden_BTD = hidden_states(policy, params, x.batch)
      return token_values(policy, params, x.batch, hidden_BTD)

    options = policy.compiler_options
    read: dict[str, Any] = {
      "out_shardings": self._mesh and sharding.replicated(self._mesh),
      "compiler_options": options,
    }
    self._logprobs = jax.jit(
      lambda params, x: outputs(policy, params, x)[0], compiler_options=options
    )
    self._reference_logprobs: Callable[[Params, TrainBatch], jax.Array]
    self._reference_logprobs = lambda params, x: self._logprobs(
      params, self_routed(x)
    )
    if reference is not None and reference.policy.config != policy.config:
      self._reference_logprobs = jax.jit(
        reference_logprobs, compiler_options=options
      )
    self._outputs = jax.jit(lambda *of: outputs(policy, *of), **read)
    self._costs = jax.jit(costs, **read)
    self._values = jax.jit(values, **read)
    self._weigh = jax.jit(self._weights, static_argnames="num_segments")

  def values(self, whole: TrainBatch, params: Params) -> np.ndarray:
    """Returns the critic's value of each token, [R, T]."""
    return self._computed(self._values, params, whole)

  def costs(self, whole: TrainBatch) -> np.ndarray:
    """Returns the penalty of each token for leaving the reference, [R, T]."""
    assert self._reference is not None  # loss.kl_coefficient needs one
    return self._computed(self._costs, self._reference.fetch(), whole)

  def micro_batches(
    self, whole: TrainBatch, params: Params, left_out_P: Sequence[float] | None
  ) -> list[TrainBatch]:
    """Cuts a batch, with weights and log-probabilities, on the mesh."""
    loss, reference = self._loss, self._reference
    if self._token_weight is not None:
      weight_RT = self._token_weights(whole, params)
      whole = dataclasses.replace(whole, token_weight=weight_RT)
    programs, common = {}, {}
    if reference is not None and loss.kl_place == "loss":
      of_reference = reference.fetch()
      programs["reference_logprob"] = (self._reference_logprobs, of_reference)
      if loss.kl_estimator == "full":
        programs["reference_hidden"] = (reference.hidden, of_reference)
        common["reference_output"] = reference.output(of_reference)
    if loss.proximal == "recomputed":
      programs["proximal_logprob"] = (self._logprobs, params)

    def completed(x: TrainBatch) -> TrainBatch:
      x = on_mesh(x, self._mesh)
      fields = {name: run(of, x) for name, (run, of) in programs.items()}
      return dataclasses.replace(x, **fields, **common)

    return [completed(x) for x in cut(whole, self._size, left_out_P)]

  def _token_weights(self, whole: TrainBatch, params: Params) -> np.ndarray:
    """Returns `loss.token_weight` of each token, [R, T].

    A quantile, a rank or a mean over tokens must not depend on the cut of the
    batch, so the weights are computed over all its rows. arXiv:2506.01939 for
    example trains on the fifth of the batch's tokens that have the highest
    entropy. Raises `NotFinite` if the weight of a trained token is NaN or
    infinite.
    """
    function, batch = self._token_weight, whole.batch
    assert function is not None
    inputs: dict[str, Any] = {"advantage_BT": whole.advantage}
    inputs |= token_inputs(batch, whole.task, whole.version)
    if function.reads & {"policy_logprob_BT", "entropy_BT"}:
      parts = [
        self._outputs(params, on_mesh(x, self._mesh))
        for x in cut(whole, self._size)
      ]
      inputs["policy_logprob_BT"], inputs["entropy_BT"] = map(
        np.concatenate, zip(*parts, strict=True)
      )
    weight_RT = self._weigh(
      {
        name: pad_rows(inputs[name])
        for name in sorted(function.reads - {"num_segments"})
      },
      num_segments=sequences_of(batch)["num_segments"],
    )
    weight_RT = np.asarray(weight_RT, np.float32)[: len(batch.mask)]
    weight_RT = np.where(batch.mask, weight_RT, 0)
    if not np.isfinite(weight_RT).all():
      raise NotFinite(
        f"{function.key}={function.target!r} gave "
        f"{np.sum(~np.isfinite(weight_RT))} of {np.sum(batch.mask)} tokens a "
        "weight that is NaN or infinite; no update was made of this batch"
      )
    return weight_RT

  def _computed(
    self,
    program: Callable[[Params, TrainBatch], jax.Array],
    params: Params,
    whole: TrainBatch,
  ) -> np.ndarray:
    return np.concatenate(
      [program(params, on_mesh(x, self._mesh)) for x in cut(whole, self._size)]
    )

  def _weights(
    self, inputs: dict[str, jax.Array], num_segments: int
  ) -> jax.Array:
    function = self._token_weight
    assert function is not None
    weight_RT = function(inputs | {"num_segments": num_segments})
    input_RT = next(iter(inputs.values()))
    result: jax.Array = function.require_shape(weight_RT, input_RT.shape)
    return result
