"""Suggests settings to change when a program does not fit.

Amounts are estimates from shapes; only a new compilation shows the real ones.
Settings come in the order of their cost: the first do not change training.
"""

import dataclasses
from collections.abc import Iterator, Sequence

from agentrl_jax.model.attention.splash import SLOTS
from launch.config.settings import Settings
from launch.planning.chips import GIB
from launch.planning.programs import packed_groups
from launch.planning.roofline import Attempts
from launch.planning.study import Judgement


@dataclasses.dataclass(frozen=True)
class Knob:
  """A setting to change and the memory that it frees on a chip, if known."""

  setting: str
  effect: str


def advice(settings: Settings, judged: Sequence[Judgement]) -> list[Knob]:
  """Lists settings to change, cheapest first; empty if everything fits."""
  tight = [j for j in judged if not j.fits]
  knobs: list[Knob] = []
  if any(j.name in ("gradient", "apply") for j in tight):
    knobs += _of_learner(settings, tight)
  if any(j.name in ("prefill", "decode") for j in tight):
    knobs += _of_rollouts(settings, tight)
  return list(dict.fromkeys(knobs))


def sharing_advice(settings: Settings, attempts: Attempts | None) -> list[Knob]:
  """Suggests rows that hold a whole group, if prompts are computed repeatedly.

  They count if rows that compute each prompt once have at least a tenth fewer
  tokens to compute for the same trajectories. Nothing is suggested for a config
  that shares nothing.
  """
  batch = settings.batch
  if attempts is None or batch.sharing == 1:
    return []
  rows = packed_groups(settings, attempts)
  once = attempts.num_nodes / (attempts.num * attempts.length)
  saved = 1 - once * rows.tokens / rows.computed
  if saved < 0.1:
    return []
  unit = SLOTS * settings.mesh["sequence"]
  length = max(-(-attempts.num_nodes // unit) * unit, batch.row_length)
  sharing = -(-attempts.num * attempts.length // length)
  wanted = [
    f"{name}={size}"
    for name, size, found in (
      ("train.row_length", length, batch.row_length),
      ("train.sharing", sharing, batch.sharing),
    )
    if size > found
  ]
  effect = f"a row holds a group: {saved:.0%} fewer tokens to compute"
  return [Knob(" ".join(wanted), effect)]


def refusal(judged: Sequence[Judgement], knobs: Sequence[Knob]) -> str:
  """Says in one sentence what does not fit; empty if everything does."""
  tight = [j for j in judged if not j.fits]
  if not tight:
    return ""
  worst = min(tight, key=lambda j: j.left)
  kept = {n: s for n, s in worst.beside.items() if s > 0.01 * worst.wanted}
  beside = ", ".join(f"{n} {s / GIB:.1f}" for n, s in kept.items())
  return (
    f"{' and '.join(j.name for j in tight)} will not fit {worst.slice_.name}: "
    f"{worst.name} wants {worst.compiled.wanted / GIB:.1f} GiB of each chip"
    + (f" beside what lies there ({beside})" if beside else "")
    + f", {-worst.left / GIB:.1f} GiB more than there is"
    + (f"; first try {knobs[0].setting} ({knobs[0].effect})" if knobs else "")
  )


def _of_learner(s: Settings, tight: Sequence[Judgement]) -> Iterator[Knob]:
  beside = {name: size for j in tight for name, size in j.beside.items()}
  chips = tight[0].slice_.num_chips
  rows, shared = s.batch.micro_batch, s.mesh["data"] * s.mesh["fsdp"]
  moved = sum(
    size
    for name, size in beside.items()
    if name.startswith(("weights", "cache"))
  )
  sequence, length = s.mesh["sequence"] * 2, s.batch.row_length
  knobs = (
    (
      s.compute.dtype == "float32",
      "compute.dtype=bfloat16",
      "half activations",
    ),
    (s.compute.remat != "full", "compute.remat=full", "one input per layer"),
    (
      not s.compute.scan_layers,
      "compute.scan_layers=True",
      "one layer's temporaries",
    ),
    (rows > shared, f"train.micro_batch={shared}", "one row per share"),
    (s.loss.token_chunk > 512, "loss.token_chunk=512", "smaller logits"),
    (moved > 0, "--rollout_topology", f"{moved / GIB:.1f} GiB elsewhere"),
    (
      s.mesh["data"] > 1,
      f"mesh.data=1 mesh.fsdp={shared}",
      "splits params over all that splits rows",
    ),
    (
      sequence <= chips and length >= 4096,
      f"mesh.sequence={sequence}",
      "half of a row on a chip",
    ),
    (
      "reference" in beside,
      "reference.place=offloaded",
      f"{beside.get('reference', 0) / GIB:.1f} GiB in the hosts' memory",
    ),
    (
      length // 2 >= s.episode.max_tokens,
      f"train.row_length={length // 2}",
      "half activations",
    ),
    (True, "--topology", f"a slice of {2 * chips} chips or more"),
  )
  return (Knob(name, effect) for applies, name, effect in knobs if applies)


def _of_rollouts(s: Settings, tight: Sequence[Judgement]) -> Iterator[Knob]:
  beside = {name: size for j in tight for name, size in j.beside.items()}
  name, sizes, least = "slots", s.engine.slots, 1
  if s.engine.has_pages:
    name, sizes, least = (
      "cache_tokens",
      s.engine.cache_tokens,
      s.engine.page_size,
    )
  half = (max(1, n // (2 * least)) * least for n in sizes)
  halved = ",".join(map(str, half))
  yield Knob(f"engine.{name}=({halved})", "halves the caches")
  if s.engine.prefill_slots > 1:
    yield Knob(
      f"engine.prefill_slots={max(1, s.engine.prefill_slots // 4)}",
      "takes fewer slots out at a time",
    )
  if s.engine.num_policy_slots > 1:
    kept = beside.get("weights of policy slot 1", 0) + beside.get(
      "cache of policy slot 1", 0
    )
    yield Knob(
      f"engine.slots=({s.engine.slots[0]},) cross_policy.weights=(1.0,) "
      "cross_policy.policy_slots=('fresh',)",
      f"serves one version, {kept / GIB:.1f} GiB less",
    )
  if not s.engine.has_pages:
    yield Knob(
      f"engine.context={s.engine.context // 2}",
      "halves the caches; so do prompts",
    )
  yield Knob("--rollout_topology", "a server with more chips")
