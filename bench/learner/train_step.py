"""One update of W-tiny on 8 rows of 256 tokens, against transformers.

Our update is `Learner.update` on a batch on the host: the clipped surrogate
with all of its metrics, its gradient, clipping by global norm and AdamW. The
peer makes the same update from the same params. The peer's own cross-entropy in
place of the surrogate is timed too, and the faster of the two counts. Before
timing, the loss, the norm of the gradient, and the loss after an update are
compared and must be equal. The limit is XLA's rate for a large float32 product.
Torch's rate is measured too, because it explains part of our lead.
"""

import functools
import pathlib
import statistics
import tempfile
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from agentrl_jax.model.policy import num_params
from bench import timing, tiny
from bench.line_peer import LinePeer, Pythons

ROWS, TOKENS, WIDTH = 8, 256, 2048
TOLERANCE = 1e-5
PEERS = ("clipped", "cross_entropy")


def measure(pairs: int, pythons: Pythons) -> dict[str, object]:
  """Measures the row; returns JSON values."""
  load_before = timing.load()
  policy, learner = tiny.make_learner()
  params = policy.init(jax.random.key(0))
  micro_batch = tiny.make_micro_batch(ROWS, TOKENS)
  update = _Updates(learner, params, micro_batch)
  turns = {"ours": update, "product": square_product()}
  peer = None
  with tempfile.TemporaryDirectory() as name:
    if pythons["torch"].exists():
      folder = pathlib.Path(name)
      tiny.write_model(folder / "model", params)
      np.savez(folder / "micro_batch.npz", **tiny.arrays(micro_batch))
      peer = LinePeer(pythons["torch"], "hugging_face_step.py", folder)
      with np.load(folder / "results.npz") as results:
        assert_equal(update, results)
      turns |= {what: functools.partial(peer.ask, what) for what in PEERS}
      turns["torch_product"] = functools.partial(peer.ask, "product")
    timing.in_turn(turns, 1)
    times = timing.in_turn(turns, pairs)
    if peer:
      peer.close()
  work = tiny.arithmetic(micro_batch, num_params(params))
  return _result(times, work) | {
    "peer": peer and peer.version,
    "load_before": load_before,
    "contended": timing.contended(load_before, times),
  }


class _Updates:
  """Makes updates in sequence; each consumes the state of the last."""

  def __init__(self, learner, params, micro_batch):
    self._learner, self._micro_batch = learner, micro_batch
    self._state = learner.init(params)
    self.first, self.second = self._next(), self._next()

  def _next(self) -> dict[str, float]:
    self._state, report = self._learner.update(self._state, [self._micro_batch])
    return report

  def __call__(self) -> timing.Times:
    return timing.times_of(self._next)


def assert_equal(update: _Updates, results) -> None:
  """Requires equal losses, gradient norms, and losses after an update."""
  for ours, wanted in (
    (update.first["loss"], results["loss"]),
    (update.second["loss"], results["loss_after"]),
  ):
    np.testing.assert_allclose(ours, wanted, rtol=TOLERANCE, atol=TOLERANCE)
  np.testing.assert_allclose(
    update.first["gradient_norm"], results["norm"], rtol=1e-4
  )


def square_product() -> Callable[[], timing.Times]:
  """Returns a function that times one 2048 x 2048 product."""
  a, b = jax.random.normal(jax.random.key(1), (2, WIDTH, WIDTH))
  product = jax.jit(jnp.matmul).lower(a, b).compile()
  return functools.partial(timing.times_of, product, a, b)


def _result(times, work: float) -> dict[str, object]:
  share = work / (2 * WIDTH**3)
  result = {
    "work": {"model": tiny.work_of(tiny.MODEL), "rows": ROWS, "tokens": TOKENS},
    "gflop": work / 1e9,
    "milliseconds": {n: timing.milliseconds(t) for n, t in times.items()},
    "product_gflops": {
      name: 2 * WIDTH**3 / statistics.median(t.wall for t in times[name]) / 1e9
      for name in ("product", "torch_product")
      if name in times
    },
    "share_of_product_rate": timing.ratio(
      times["product"], times["ours"], factor=share
    ),
    "share_of_product_rate_by_cpu": share
    * statistics.median(
      a.cpu / b.cpu
      for a, b in zip(times["product"], times["ours"], strict=True)
    ),
  }
  peers = [name for name in PEERS if name in times]
  if peers:
    result["times_faster_than"] = {
      name: timing.ratio(times[name], times["ours"]) for name in peers
    }
    # What nothing but the products, at XLA's rate, would reach.
    result["limit_of_times_faster"] = {
      name: timing.ratio(times[name], times["product"], factor=1 / share)
      for name in peers
    }
  return result
