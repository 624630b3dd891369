"""An update of a published model on 4 groups of 8 answers, with transformers.

Ours packs the groups as prefix trees in rows of 192 tokens, as
configs/smollm2.py does, builds the batch and makes the update. Peers have the
same clipped surrogate, clipping and torch's fused AdamW: `transformers`
computes all 32 sequences in one padded batch, `trl` as TRL's trainer does, in
micro-batches of 8 and with its head, which is slower and takes less memory.
Loss and norm of the gradient must be equal before anything is timed.

`tokens` are those that each side computes; operations are 6 params a token.
CPU seconds are given too: they mean something on a busy machine.
"""

import functools
import pathlib
import tempfile

import jax
import numpy as np

from agentrl_jax.data.records import Group, Task
from agentrl_jax.train.batch_builder import BatchBuilder
from agentrl_jax.train.config.advantage import AdvantageConfig
from agentrl_jax.train.train_batch import BatchConfig, TrainBatch
from bench import published, timing, tiny
from bench.learner.shared import ATTEMPTS, make_attempt
from bench.learner.train_step import WIDTH, square_product
from bench.line_peer import LinePeer, Pythons, peak_gib

GROUPS, ROW = 4, 192
PEERS = {  # script, its results, and the line for an update
  "transformers": ("hugging_face_step.py", "results.npz", "clipped"),
  "trl": ("trl_step.py", "trl_results.npz", "update"),
}


def measure(pairs: int, pythons: Pythons) -> dict[str, object]:
  """Measures the row; returns JSON values."""
  load_before = timing.load()
  loss = tiny.loss_config(token_chunk=0)
  policy, learner, params = published.load(loss)
  groups = _groups()
  builder = BatchBuilder(
    policy,
    loss=loss,
    advantage=AdvantageConfig(task_center=False, task_scale=False),
    batch=BatchConfig(row_length=ROW, micro_batch=1, sharing=8, roles=()),
    task_ids={"problems": 0},
    temperature=1.0,
  )
  num_params = published.num_params(params)
  micro_batches, _ = builder.build(groups, params)
  ours = _Updates(learner, builder, groups, params)
  del params
  turns = {"ours": ours, "product": square_product()}
  arrays = _peer_arrays(micro_batches)
  with tempfile.TemporaryDirectory() as name:
    workspace = pathlib.Path(name)
    (workspace / "model").symlink_to(published.folder())
    np.savez(workspace / "micro_batch.npz", **arrays)
    peers, tokens = {}, {}
    for name, (script, results, line) in PEERS.items():
      peers[name] = LinePeer(pythons["torch"], script, workspace)
      tokens[name] = _equal_tokens(ours.report, workspace / results)
      turns[name] = functools.partial(peers[name].ask, line)
    product = functools.partial(peers["transformers"].ask, "product")
    timing.in_turn(turns | {"torch_product": product}, 1)
    times = timing.in_turn(turns | {"torch_product": product}, pairs)
    peak = {name: peer.peak_gib() for name, peer in peers.items()}
    for peer in peers.values():
      peer.close()
  tokens |= {
    "ours": len(micro_batches) * ROW,
    "transformers": arrays["token"].size,
    "of_trajectories": sum(
      t.num_tokens for g in groups for t in g.trajectories
    ),
    "sampled": int(arrays["mask"].sum()),
  }
  return {
    "work": {
      "model": published.folder().name,
      "groups": GROUPS,
      "attempts": ATTEMPTS,
    },
    "params": num_params,
    "tokens": tokens,
    "peers": {name: peer.version for name, peer in peers.items()},
    "milliseconds": {n: timing.milliseconds(t) for n, t in times.items()},
    "times_faster_than": {
      name: timing.ratio(times[name], times["ours"]) for name in peers
    },
    "peak_gib": {"ours": peak_gib()} | peak,
    **_by_cpu(times, tokens, num_params),
    "load_before": load_before,
    "contended": timing.contended(load_before, times),
  }


def _by_cpu(times, tokens, num_params: int) -> dict[str, object]:
  seconds = {n: timing.milliseconds(t)["cpu"] / 1e3 for n, t in times.items()}
  rates = {
    name: 6e-9 * num_params * tokens[name] / seconds[name]
    for name in ("ours", *PEERS)
  }
  return {
    "times_less_cpu_than": {
      name: seconds[name] / seconds["ours"] for name in PEERS
    },
    "gflop_per_cpu_s": rates
    | {
      name: published.product_gflops(times[name], WIDTH)
      for name in ("product", "torch_product")
    },
    "operations_to": {name: rates["ours"] / rates[name] for name in PEERS},
  }


def _equal_tokens(report, results: pathlib.Path) -> int:
  """Returns the tokens that a peer computes, 0 if it does not say so.

  Raises `AssertionError` if its loss or its gradient's norm differs from ours.
  """
  with np.load(results) as theirs:
    for key, name in (("loss", "loss"), ("gradient_norm", "norm")):
      np.testing.assert_allclose(
        report[key], theirs[name], rtol=1e-3, atol=1e-5, err_msg=key
      )
    return int(theirs["tokens"]) if "tokens" in theirs else 0


class _Updates:
  """Builds the batch and makes an update; each consumes the last's state."""

  def __init__(self, learner, builder, groups, params):
    self._learner, self._builder, self._groups = learner, builder, groups
    self._state, self.report = learner.init(params), {}
    self._update()

  def __call__(self) -> timing.Times:
    return timing.times_of(self._update)

  def _update(self) -> None:
    micro_batches, _ = self._builder.build(self._groups, self._state.params)
    self._state, self.report = self._learner.update(self._state, micro_batches)
    jax.block_until_ready(self._state.params)


def _groups() -> list[Group]:
  encode, rng = published.tokenizer().encode, np.random.default_rng(1)

  def ids(text: str) -> np.ndarray:
    return np.array(encode(text, add_special_tokens=False).ids, np.int32)

  groups = []
  for n, (prompt, answers) in enumerate(published.questions(GROUPS)):
    task = Task("problems", "train", n)
    attempts = tuple(
      make_attempt(task, k, [(ids(prompt), ids(answer + "<|im_end|>"))], rng)
      for k, answer in enumerate(answers[:ATTEMPTS])
    )
    groups.append(Group(str(n), task, attempts))
  return groups


def _peer_arrays(micro_batches: list[TrainBatch]) -> dict[str, np.ndarray]:
  """Unpacks trajectories to one padded batch, [32, longest] each."""
  rows = []
  for each in micro_batches:
    arrays, b = tiny.arrays(each), each.batch
    for row, segments in enumerate(np.asarray(b.segment)):
      for number in range(1, segments.max() + 1):
        at = segments == number
        rows.append({k: np.asarray(x)[row][at] for k, x in arrays.items()})
  longest = max(len(row["token"]) for row in rows)
  return {
    name: np.stack(
      [np.pad(row[name], (0, longest - len(row[name]))) for row in rows]
    )
    for name in rows[0]
  }
