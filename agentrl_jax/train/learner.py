"""Updates of the policy, from micro-batches that add up exactly.

Two pure functions are compiled: one adds a micro-batch's gradient to a running
sum, one applies the sum. Totals are differentiated, and the weight is divided
out once, at the end. So the update does not depend on the cut, and since all
micro-batches have one shape, their number may change without compiling again.
"""

import dataclasses
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from agentrl_jax.errors import ConfigError, NotFinite
from agentrl_jax.keys import Section, key
from agentrl_jax.losses import Mean, RatioMoments
from agentrl_jax.model import sharding
from agentrl_jax.model.compiler_options import Options
from agentrl_jax.model.config import ModelConfig
from agentrl_jax.model.decoder import FIXED
from agentrl_jax.model.lora import LoraConfig
from agentrl_jax.model.policy import Params, Policy
from agentrl_jax.train.metrics import (
  NO_SIGNAL,
  NOT_FINITE,
  EngineDrift,
  TokenValues,
  drift_numbers,
  policy_slot_numbers,
)
from agentrl_jax.train.objective import Metrics, Objective
from agentrl_jax.train.train_batch import TrainBatch, batch_shardings, on_mesh
from agentrl_jax.train.weights import expert_load

_log = logging.getLogger(__name__)
MOST_NOT_FINITE = 5  # updates in a row, with which a stage ends


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
  """The state that an update changes."""

  params: Params  # the trained ones: with LoRA, the adapters
  optimizer: optax.OptState
  # int32 [], counts updates, skipped ones too; rollouts are stamped with it.
  version: jax.Array


class Learner:
  """Compiles the updates of a policy on a mesh; holds no training state."""

  def __init__(
    self,
    policy: Policy,
    objective: Objective,
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    *,
    expert_bias_rate: float = 0.0,
  ):
    self._policy = policy
    self._expert_bias_rate = expert_bias_rate
    self._objective = objective
    self._optimizer = optimizer
    self.mesh = mesh
    self.state_sharding = self._state_sharding()
    replicated = sharding.replicated(mesh)
    of_params = self.state_sharding.params
    of_frozen = self._frozen_sharding()
    of_sums = (of_params, replicated)  # a gradient is split as its parameter
    options = policy.compiler_options
    check_known(options, mesh)
    self._init = jax.jit(self._fresh, out_shardings=self.state_sharding)
    self._zeros = jax.jit(self._zero_sums, out_shardings=of_sums)
    self._add = jax.jit(
      self._add_gradient,
      donate_argnums=2,
      in_shardings=(
        of_params,
        of_frozen,
        of_sums,
        batch_shardings(mesh),
        replicated,
      ),
      out_shardings=(of_sums, replicated),
      compiler_options=options,
    )
    self._loss = jax.jit(
      lambda *of: self._total(*of)[1]["loss"],
      in_shardings=(of_params, of_frozen, batch_shardings(mesh), replicated),
      out_shardings=replicated,
      compiler_options=options,
    )
    self._apply = jax.jit(
      self._apply_gradient,
      donate_argnums=0,
      out_shardings=(self.state_sharding, replicated),
      compiler_options=options,
    )

  def init(self, params: Params) -> TrainState:
    """Returns version 0 with a copy of `params`, which stay usable."""
    return self._init(params)

  def abstract_state(self) -> TrainState:
    """Returns shapes, dtypes and shardings of a state, to restore into."""
    shapes = jax.eval_shape(self._fresh, self._policy.abstract_split()[0])
    return _with_shardings(shapes, self.state_sharding)

  def traced(self, micro_batch: TrainBatch) -> dict[str, jax.stages.Traced]:
    """Traces the programs of an update, for micro-batches of such shapes.

    "gradient" runs once per micro-batch, "apply" once. The micro-batch may
    hold `jax.ShapeDtypeStruct`s: nothing is allocated, nothing runs.
    """
    state, frozen = self.abstract_state(), None
    if self._policy.adaptation:
      shapes = self._policy.abstract_split()[1]
      frozen = _with_shardings(shapes, self._frozen_sharding())
    sums = jax.eval_shape(
      self._zero_sums, state.params, frozen, micro_batch, state.version
    )
    return {
      "gradient": self._add.trace(
        state.params, frozen, sums, micro_batch, state.version
      ),
      "apply": self._apply.trace(state, sums),
    }

  def update(
    self,
    state: TrainState,
    micro_batches: Sequence[TrainBatch],
    frozen: Params | None = None,
    on_tokens: Callable[[int, Mapping[str, jax.Array]], None] | None = None,
  ) -> tuple[TrainState, dict[str, float]]:
    """Makes one optimizer update on one micro-batch or more; donates `state`.

    An update is skipped if each number of its gradient is 0, or if its loss or
    gradient is NaN or infinite: params and optimizer stay as they were, so
    that neither momentum nor weight decay acts, and the version goes on. The
    metrics say so by `NO_SIGNAL` and `NOT_FINITE`.

    `frozen` are the base params if adapters are trained. Micro-batches are
    equal in shape, and lie on the mesh, or on the host, the same in every
    process. `on_tokens` is called with the position of each micro-batch and the
    objective's values of its tokens, [B, T] each. Returns when the update is
    done.
    """
    sums = None
    for number, micro_batch in enumerate(micro_batches):
      micro_batch = on_mesh(micro_batch, self.mesh)
      if sums is None:
        sums = self._zeros(state.params, frozen, micro_batch, state.version)
      sums, values = self._add(
        state.params, frozen, sums, micro_batch, state.version
      )
      if on_tokens is not None:
        on_tokens(number, values)
    state, metrics = self._apply(state, sums)
    return state, _numbers(metrics)

  def loss(
    self,
    state: TrainState,
    micro_batches: Sequence[TrainBatch],
    frozen: Params | None = None,
  ) -> float:
    """Returns the mean loss of micro-batches, and changes nothing."""
    sums = [
      self._loss(state.params, frozen, on_mesh(each, self.mesh), state.version)
      for each in micro_batches
    ]
    weight = sum(float(mean.weight) for mean in sums)
    return sum(float(mean.total) for mean in sums) / max(weight, 1.0)

  def _fresh(self, params: Params) -> TrainState:
    params = jax.tree.map(jnp.asarray, params)
    return TrainState(
      params, self._optimizer.init(params), jnp.zeros((), jnp.int32)
    )

  def _state_sharding(self) -> TrainState:
    params = self._policy.abstract_split()[0]
    of_params = sharding.param_shardings(params, self.mesh)
    replicated = sharding.replicated(self.mesh)
    abstract = jax.eval_shape(self._fresh, params)
    of_optimizer = optax.tree_map_params(
      self._optimizer,
      lambda _, sh: sh,
      abstract.optimizer,
      of_params,
      transform_non_params=lambda _: replicated,
    )
    return TrainState(of_params, of_optimizer, replicated)

  def _frozen_sharding(self) -> Params | None:
    if not self._policy.adaptation:
      return None
    shardings: Params = sharding.param_shardings(
      self._policy.abstract_split()[1], self.mesh
    )
    return shardings

  def _total(
    self,
    params: Params,
    frozen: Params | None,
    micro_batch: TrainBatch,
    version: jax.Array,
  ) -> tuple[jax.Array, Metrics]:
    all_params = self._policy.whole(params, frozen)
    loss, metrics = self._objective(all_params, micro_batch, version)
    return loss.total, metrics | {"loss": loss}

  def _zero_sums(
    self,
    params: Params,
    frozen: Params | None,
    micro_batch: TrainBatch,
    version: jax.Array,
  ) -> Any:
    """Returns zeros for the gradient and for the metrics."""
    (_, metrics), grads = jax.eval_shape(
      jax.value_and_grad(self._total, has_aux=True),
      params,
      frozen,
      micro_batch,
      version,
    )
    return jax.tree.map(
      lambda s: jnp.zeros(s.shape, s.dtype), (grads, _sums_of(metrics))
    )

  def _add_gradient(
    self,
    params: Params,
    frozen: Params | None,
    sums: Any,
    micro_batch: TrainBatch,
    version: jax.Array,
  ) -> tuple[Any, dict[str, jax.Array]]:
    (_, metrics), grads = jax.value_and_grad(self._total, has_aux=True)(
      params, frozen, micro_batch, version
    )
    sum_of_grads, sum_of_metrics = sums
    sums = (
      jax.tree.map(jnp.add, sum_of_grads, grads),
      # By their own `+`: a metric may add up otherwise than leaf by leaf.
      {name: sum_of_metrics[name] + x for name, x in _sums_of(metrics).items()},
    )
    return sums, {
      name: x.values_BT
      for name, x in metrics.items()
      if isinstance(x, TokenValues)
    }

  def _apply_gradient(
    self, state: TrainState, sums: Any
  ) -> tuple[TrainState, Metrics]:
    totals, metrics = sums
    loss = metrics["loss"]
    weight = jnp.where(loss.weight > 0, loss.weight, 1)  # it may be below 1
    totals, load_LE = expert_load.split_load(totals)
    grads = jax.tree.map(lambda g: g / weight, totals)
    updates, optimizer = self._optimizer.update(
      grads, state.optimizer, state.params
    )
    if load_LE is not None:
      updates = expert_load.balance(updates, load_LE, self._expert_bias_rate)
      uneven = Mean(expert_load.imbalance(load_LE), jnp.ones(()))
      metrics |= {"expert_load": uneven}
    norm = optax.tree.norm(grads)
    is_finite = jnp.isfinite(norm) & jnp.isfinite(loss.total)
    # Number by number: the norm is 0 where squares are too small for a float.
    has_signal = jnp.stack([x.any() for x in jax.tree.leaves(totals)]).any()
    params, optimizer = jax.tree.map(
      partial(jnp.where, has_signal & is_finite),
      (optax.apply_updates(state.params, updates), optimizer),
      (state.params, state.optimizer),
    )
    numbers = {
      "gradient_norm": norm,
      NO_SIGNAL: ~has_signal & is_finite,
      NOT_FINITE: ~is_finite,
    }
    metrics |= {name: Mean(x, jnp.ones(())) for name, x in numbers.items()}
    return TrainState(params, optimizer, state.version + 1), metrics


class NotFiniteLimit:
  """Ends a stage whose updates are not finite, many in a row."""

  def __init__(self) -> None:
    self.in_a_row = 0

  def watch(self, report: Mapping[str, float], version: int) -> None:
    """Takes the report of the update that made `version`.

    Raises `NotFinite` for the last that `MOST_NOT_FINITE` allows.
    """
    if not report[NOT_FINITE]:
      self.in_a_row = 0
      return
    self.in_a_row += 1
    numbers = ", ".join(
      f"{name}={value}"
      for name, value in report.items()
      if not math.isfinite(value)
    )
    found = f"update {version} produced {numbers} and was skipped"
    _log.warning("%s: the params are those of before", found)
    if self.in_a_row >= MOST_NOT_FINITE:
      raise NotFinite(
        f"{found}, as were the {self.in_a_row - 1} before it: the params are "
        "those of before them, and no update will succeed. Look at the metrics "
        "of the steps before, and lower optimizer.learning_rate or "
        "optimizer.clip_norm and go on from an earlier checkpoint "
        "(checkpoint.resume_step)"
      )


def _with_shardings(shapes: Any, shardings: Any) -> Any:
  return jax.tree.map(
    lambda s, sh: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=sh),
    shapes,
    shardings,
  )


def _sums_of(metrics: Metrics) -> dict[str, Any]:
  """Returns the metrics that add up over micro-batches."""
  return {
    name: x for name, x in metrics.items() if not isinstance(x, TokenValues)
  }


def _numbers(metrics: Metrics) -> dict[str, float]:
  """Turns the sums over micro-batches into numbers to report."""
  report: dict[str, float] = {}
  for name, summed in metrics.items():
    if isinstance(summed, RatioMoments):
      report |= policy_slot_numbers(name, summed)
    elif isinstance(summed, EngineDrift):
      report |= drift_numbers(summed)
    else:
      report[name] = float(summed.value())
  return report


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerConfig(Section, section="optimizer"):
  """The `optimizer` section of the config: AdamW's settings for one stage."""

  learning_rate: float = key(
    1e-6, "highest value of the learning rate", above=0
  )
  warmup_steps: int = key(10, "updates until learning_rate is reached")
  final_lr_ratio: float = key(
    1.0, "last share of learning_rate, by cosine decay", at_most=1
  )
  b1: float = key(0.9, "decay of the mean gradient", below=1)
  b2: float = key(0.999, "decay of the mean square", below=1)
  weight_decay: float = key(0.0, "times the learning rate")
  clip_norm: float = key(1.0, "largest norm of a gradient", above=0)
  expert_bias_rate: float = key(
    0.0,
    "step of the bias by which a sigmoid router chooses an expert: up if it "
    "had fewer tokens than the mean, down if more; 0: biases stay",
  )

  def check_experts(self, model: ModelConfig, lora: LoraConfig) -> None:
    """Raises `ConfigError` if biases are to change that are fixed, or none."""
    if self.expert_bias_rate and (lora or not model.sigmoid_router):
      raise ConfigError(
        f"optimizer.expert_bias_rate={self.expert_bias_rate} changes biases of "
        f"routers, and with model.sigmoid_router={model.sigmoid_router} and "
        f"lora.rank={lora.rank} none is trained: set "
        "--config.optimizer.expert_bias_rate=0"
      )


def make_optimizer(
  config: OptimizerConfig, num_steps: int
) -> optax.GradientTransformation:
  """Returns clipping by global norm, then AdamW.

  The learning rate warms up and then decays over `num_steps` updates.
  """
  warmup = min(config.warmup_steps, max(num_steps - 1, 0))
  schedule = optax.warmup_cosine_decay_schedule(
    init_value=config.learning_rate / (warmup + 1),
    peak_value=config.learning_rate,
    warmup_steps=warmup,
    decay_steps=max(num_steps, warmup + 1),
    end_value=config.learning_rate * config.final_lr_ratio,
  )
  return optax.chain(
    optax.clip_by_global_norm(config.clip_norm),
    optax.adamw(
      schedule,
      b1=config.b1,
      b2=config.b2,
      weight_decay=config.weight_decay,
      mask=_is_trained if config.weight_decay else None,
    ),
  )


def _is_trained(params: Params) -> Params:
  """Says of each param if it is none of those that have no gradient."""
  return jax.tree_util.tree_map_with_path(
    lambda path, _: path[-1].key not in FIXED, params
  )


def check_known(options: Options | None, mesh: Mesh | None) -> None:
  """Raises `ConfigError` if the compiler of a mesh refuses these options."""
  if options:
    device = None if mesh is None else mesh.devices.flat[0]
    _compile_nothing(frozenset(options.items()), device)


@cache
def _compile_nothing(
  options: frozenset[tuple[str, bool | int | float | str]],
  device: jax.Device | None,
) -> None:
  place = None if device is None else jax.sharding.SingleDeviceSharding(device)
  nothing: Any = jax.ShapeDtypeStruct((), "int32", sharding=place)  # type: ignore[no-untyped-call]
  function = jax.jit(lambda x: x, compiler_options=dict(options))
  platforms = None if device is None else (device.platform,)
  try:
    function.trace(nothing).lower(lowering_platforms=platforms).compile()
  except jax.errors.JaxRuntimeError as error:
    raise ConfigError(
      f"the compiler refuses compute.compiler_options: {error}; take that "
      "option away, or all of them with "
      "--config.compute.compiler_options=none, which moves more bytes between "
      "chips and computes the same"
    ) from error
