"""Experts by groups, and each of every token, say the same."""

import dataclasses
import functools
import math
import re
import unittest

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized
from flax import nnx

from agentrl_jax.errors import ConfigError
from agentrl_jax.model import experts, lora, sharding
from agentrl_jax.model.config import ModelConfig
from agentrl_jax.model.hugging_face.tensor_names import places
from agentrl_jax.model.lora import LoraConfig
from agentrl_jax.model.policy import Policy
from agentrl_jax.train.weights import expert_load
from tests.model import drawn
from tests.model.hugging_face import families
from tests.settings import COMPUTE, compute_config

MODEL = ModelConfig(
  vocab_size=40,
  width=12,
  num_layers=1,
  num_heads=2,
  num_kv_heads=1,
  head_dim=8,
  mlp_width=10,
  num_experts=6,
  experts_per_token=2,
)


route = jax.jit(experts.route, static_argnames="c")


def routed(expert_NK):
  """Four tokens, their weights, and matrices of four experts."""
  rng = np.random.default_rng(0)
  shapes = (4, 12), (4, 2), (4, 12, 10), (4, 12, 10), (4, 10, 12)
  x, weight, *matrices = (
    (0.5 * rng.normal(size=shape)).astype(np.float32) for shape in shapes
  )
  return x, weight, np.asarray(expert_NK), *matrices


@functools.partial(jax.jit, static_argnums=(0, 1))
def slopes_and_output(apply, limit, x_ND, weight_NK, expert_NK, *params):
  def total(x_ND, weight_NK, *params):
    y_ND = apply(x_ND, weight_NK, expert_NK, *params, limit=limit)
    return jnp.sum(jnp.sin(y_ND)), y_ND

  others = x_ND, weight_NK, *params
  return jax.grad(total, tuple(range(len(others))), has_aux=True)(*others)


class ApplyTest(parameterized.TestCase):
  @parameterized.named_parameters(
    ("each_used", [[0, 1], [2, 3], [3, 0], [1, 3]]),
    ("one_for_all", [[2, 1]] * 4),
    # Numbers of other devices' experts, below and above those of this one.
    ("of_others", [[-3, 1], [7, 4], [3, -1], [0, 2]]),
    ("none_here", [[-2, -1], [4, 5], [-1, 4], [5, -3]]),
  )
  def test_groups_equal_all(self, expert_NK):
    x, weight, expert_NK, *matrices = routed(expert_NK)
    biases = [0.5 * matrix.sum(1) for matrix in matrices]
    for limit, params in ((0.0, matrices), (0.3, [*matrices, *biases])):
      found = [
        slopes_and_output(apply, limit, x, weight, expert_NK, *params)
        for apply in (experts.apply_grouped, experts.apply_all)
      ]
      jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), *found
      )

  def test_a_tokens_output_is_the_weighted_sum_of_its_experts(self):
    x, weight, expert_NK, gate, up, down = routed([[3, 1]] * 4)
    wanted = 0
    for w, e in zip(weight[0], expert_NK[0], strict=True):
      gated = x[0] @ gate[e] / (1 + np.exp(-x[0] @ gate[e]))
      wanted += w * ((gated * (x[0] @ up[e])) @ down[e])
    _, found = slopes_and_output(
      experts.apply_grouped, 0.0, x, weight, expert_NK, gate, up, down
    )
    np.testing.assert_allclose(found[0], wanted, rtol=1e-5)


@unittest.skipIf(families.torch is None, families.WITHOUT)
class GptOssTest(absltest.TestCase):
  """Experts with biases and limits, as transformers computes them."""

  def setUp(self):
    super().setUp()
    torch, oss = families.torch, families.transformers.models.gpt_oss
    torch.manual_seed(0)
    config = oss.GptOssConfig(
      hidden_size=12,
      intermediate_size=10,
      num_local_experts=6,
      num_experts_per_tok=3,
    )
    config._experts_implementation = "eager"
    self.theirs = oss.modeling_gpt_oss.GptOssMLP(config)
    for weight in self.theirs.parameters():
      # Some gates and ups are beyond the limit.
      torch.nn.init.normal_(weight, std=1.5)
    self.x_BTD = np.random.default_rng(0).normal(size=(2, 9, 12))
    self.config = dataclasses.replace(
      MODEL, experts_per_token=3, normed_experts=True, swiglu_limit=7.0
    )
    named = {
      f"model.layers.{{layer}}.mlp.{name}": weight
      for name, weight in self.theirs.named_parameters()
    }
    self.ours = experts.Experts(self.config, nnx.Rngs(0))
    for path, place in places(self.config, "qwen3_moe").items():
      if path[:2] != ("layers", "experts"):
        continue
      weight = named[place.tensor].detach().numpy()
      self.assertEqual(weight.shape, place.matrix)
      index = (slice(None),) * len(place.shape)
      part = place.read(
        lambda name, shape, index, start=0, weight=weight: weight.reshape(
          shape
        )[index],
        place.tensor,
        index,
      )
      getattr(self.ours, path[2])[...] = jnp.asarray(place.to_leaf(part))

  def test_outputs_and_gradients(self):
    torch = families.torch
    x = torch.tensor(self.x_BTD, dtype=torch.float32, requires_grad=True)
    wanted, _ = self.theirs(x)
    wanted.sin().sum().backward()
    graph, state = nnx.split(self.ours)

    def total(state, x_BTD, is_grouped):
      ours = nnx.merge(graph, state)
      y_BTD, _ = experts._apply_on_device(
        None,
        x_BTD,
        ours.router_params(jnp.float32),
        *ours.expert_params(jnp.float32),
        config=self.config,
        is_grouped=is_grouped,
        gives_choice=False,
      )
      return jnp.sum(jnp.sin(y_BTD)), y_BTD

    for is_grouped in (True, False):
      grad = jax.grad(total, (0, 1), has_aux=True)
      (slope, slope_x), found = grad(
        state, jnp.asarray(self.x_BTD, jnp.float32), is_grouped
      )
      wanted_y = wanted.detach().numpy()
      scale = np.abs(wanted_y).max()
      np.testing.assert_allclose(found, wanted_y, atol=1e-5 * scale)
      wanted_x = x.grad.numpy()
      scale = np.abs(wanted_x).max()
      np.testing.assert_allclose(slope_x, wanted_x, atol=1e-4 * scale)
      oss = self.theirs.experts
      for name, weight in (
        ("router", self.theirs.router.weight.grad.T),
        ("router_bias", self.theirs.router.bias.grad),
        ("gate", oss.gate_up_proj.grad[..., ::2]),
        ("up_bias", oss.gate_up_proj_bias.grad[..., 1::2]),
        ("down", oss.down_proj.grad),
        ("down_bias", oss.down_proj_bias.grad),
      ):
        weight = weight.numpy()
        scale = np.abs(weight).max()
        np.testing.assert_allclose(
          slope[name][...], weight, atol=1e-4 * scale, err_msg=name
        )

  def test_a_limit_needs_weights_that_add_up(self):
    for change in ({"normed_experts": False}, {"swiglu_limit": -1.0}):
      with self.assertRaisesRegex(ConfigError, "swiglu_limit.*gpt-oss"):
        dataclasses.replace(self.config, **change)


class MeshTest(absltest.TestCase):
  def test_gradients_of_tokens_are_summed_for_each_token_alone(self):
    """Not for each expert of a token: what devices exchange is [N, D]."""
    sizes = dict.fromkeys(sharding.MESH_AXES, 1) | {"tensor": 2, "expert": 2}
    auto = (jax.sharding.AxisType.Auto,) * len(sizes)  # as of the mesh of a run
    mesh = jax.sharding.AbstractMesh((*sizes.values(),), (*sizes,), auto)
    axes = sharding.spec_on(mesh, "experts")[0]
    rows = sharding.spec("rows", "tokens", None)
    config = dataclasses.replace(MODEL, num_experts=8, experts_per_token=4)
    on_device = functools.partial(
      experts._apply_on_device,
      config=config,
      is_grouped=True,
      gives_choice=False,
      axes=axes,
      splits_rows=True,
    )
    apply = jax.shard_map(
      lambda x, router, *params: on_device(None, x, (router,), *params)[0],
      mesh=mesh,
      in_specs=(rows, jax.P(), *[jax.P(axes)] * 3),
      out_specs=rows,
    )
    shapes = [(2, 7, 12), (12, 8), (8, 12, 10), (8, 12, 10), (8, 10, 12)]
    arrays = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    slope = jax.grad(lambda *x: apply(*x).sum())
    text = str(jax.make_jaxpr(slope)(*arrays))
    summed = re.findall(r"f32\[([\d,]+)\]\S* = psum", text)
    self.assertIn("7,12", summed)
    for shape in summed:
      self.assertLessEqual(math.prod(map(int, shape.split(","))), 7 * 12)


class RouteTest(parameterized.TestCase):
  def test_weights_are_shares_of_all_or_of_the_chosen(self):
    x_ND = np.eye(2, 12, dtype=np.float32)
    router_DE = np.zeros((12, 6), np.float32)
    router_DE[0, 4] = 1
    weight_NK, expert_NK = route(x_ND, router_DE, c=MODEL)
    self.assertEqual(expert_NK.tolist(), [[4, 0], [0, 1]])
    np.testing.assert_allclose(
      np.asarray(weight_NK)[1], [1 / 6, 1 / 6], rtol=1e-6
    )
    normed = dataclasses.replace(MODEL, normed_experts=True)
    weight_NK, _ = route(x_ND, router_DE, c=normed)
    np.testing.assert_allclose(np.sum(weight_NK, axis=1), [1, 1], rtol=1e-6)

  @parameterized.parameters((True, 1), (False, 2), (True, 3))
  def test_sigmoids_choose_with_a_bias_and_weigh_without(
    self, normed, groups_per_token
  ):
    c = dataclasses.replace(
      MODEL,
      num_experts=12,
      sigmoid_router=True,
      normed_experts=normed,
      expert_groups=3,
      groups_per_token=groups_per_token,
      expert_scale=2.5,
    )
    rng = np.random.default_rng(groups_per_token)
    x_ND, router_DE = rng.normal(size=(50, 12)), rng.normal(size=(12, 12))
    bias_E = rng.normal(size=12)
    weight_NK, expert_NK = map(
      np.asarray,
      route(*(np.float32(x) for x in (x_ND, router_DE, bias_E)), c=c),
    )
    score_NE = 1 / (1 + np.exp(-x_ND @ router_DE))
    others = 0
    for n, score_E in enumerate(score_NE):
      groups = (score_E + bias_E).reshape(3, 4)
      worth = np.sort(groups, axis=1)[:, -2:].sum(1)
      best = np.argsort(worth)[::-1][:groups_per_token]
      allowed = [e for e in range(12) if e // 4 in best]
      chosen = sorted(allowed, key=lambda e: -(score_E + bias_E)[e])[:2]
      self.assertEqual(expert_NK[n].tolist(), chosen)
      others += chosen != np.argsort(score_E)[::-1][:2].tolist()
      total = score_E[chosen].sum() if normed else 1.0
      np.testing.assert_allclose(
        weight_NK[n], 2.5 * score_E[chosen] / total, rtol=1e-5
      )
    self.assertGreater(others, 10)

  def test_the_slope_of_a_bias_is_the_load_of_its_expert(self):
    """Of the tokens that a loss depends on: here not of the last three."""
    c = dataclasses.replace(MODEL, sigmoid_router=True, normed_experts=True)
    x_ND, router_DE = np.random.default_rng(0).normal(size=(2, 12, 12))

    @functools.partial(jax.grad, has_aux=True)
    def load(bias_E):
      weight_NK, expert_NK = experts.route(x_ND, router_DE[:, :6], bias_E, c=c)
      return jnp.sum(jnp.sin(weight_NK[:9])), expert_NK

    @jax.jit
    def stepped(bias_E):
      load_E, expert_NK = load(bias_E)
      gradient = {"layers": {"experts": {"correction_bias": load_E[None]}}}
      rest, load_LE = expert_load.split_load(gradient)
      step = expert_load.balance(rest, load_LE, 0.5)
      return load_E, expert_NK, rest, step, expert_load.imbalance(load_LE)

    load_E, expert_NK, rest, step, imbalance = jax.tree.map(
      np.asarray, stepped(np.arange(6, dtype=np.float32) / 10)
    )
    wanted_E = np.bincount(expert_NK[:9].reshape(-1), minlength=6)
    np.testing.assert_array_equal(load_E, wanted_E)
    self.assertGreater(wanted_E.max(), wanted_E.mean())
    np.testing.assert_array_equal(
      [x["layers"]["experts"]["correction_bias"][0] for x in (rest, step)],
      [np.zeros(6), 0.5 * np.sign(3 - wanted_E)],
    )
    self.assertAlmostEqual(float(imbalance), wanted_E.max() / 3, places=6)

  def test_near_experts_keep_their_places_in_bfloat16(self):
    x_ND = np.ones((1, 12), jnp.bfloat16)
    router_DE = np.zeros((12, 6), np.float32)
    router_DE[0] = 1 + np.arange(6) * 1e-4
    _, expert_NK = route(x_ND, router_DE, c=MODEL)
    self.assertEqual(expert_NK.tolist(), [[5, 4]])

  @parameterized.parameters(False, True)
  def test_the_learner_routes_by_the_numbers_that_rollouts_have(self, sigmoid):
    """Published weights are in the dtype of the computation, the router too.

    One by sigmoids stays float32, and so does its bias.
    """
    model = dataclasses.replace(MODEL, sigmoid_router=sigmoid)
    policy = Policy(model, compute_config(dtype="bfloat16"))
    params = drawn.fill(policy.abstract_params())
    rounded = jax.jit(sharding.copied, static_argnums=1)(
      params["layers"]["experts"], "bfloat16"
    )
    dtypes = {name: x.dtype.name for name, x in rounded.items()}
    router = "exact_router" if sigmoid else "router"
    self.assertEqual(
      (dtypes[router], dtypes.get("correction_bias", "float32")),
      ("float32" if sigmoid else "bfloat16", "float32"),
    )
    published = params | {"layers": params["layers"] | {"experts": rounded}}
    rows = (np.arange(24)[None], np.arange(24)[None], np.ones((1, 24), int))
    logits = jax.jit(policy.logits)
    learner, rollout = (logits(p, *rows) for p in (params, published))
    np.testing.assert_array_equal(learner, rollout)


class AdaptersTest(parameterized.TestCase):
  @parameterized.parameters(0.0, 0.3)
  def test_gradients_are_those_of_whole_matrices(self, limit):
    *others, gate, up, down = routed([[-3, 1], [7, 3], [3, -1], [0, 2]])
    biases = [0.5 * m.sum(1) for m in (gate, up, down) if limit]
    rng = np.random.default_rng(1)
    adapted = []
    for kernel in (gate, up, down):
      a, b = rng.normal(size=(4, 12, 2)), rng.normal(size=(4, 2, 12))
      a, b = np.float32(a[:, : kernel.shape[1]]), np.float32(b)
      b = b[..., : kernel.shape[2]]
      adapted.append(lora.Adapted(kernel + 0.5 * a @ b, a, b, 0.5))
    kernels = [each.kernel for each in adapted]
    slopes, output = slopes_and_output(
      experts.apply_all, limit, *others, *kernels, *biases
    )
    wanted = [
      lora.Adapted(
        np.zeros_like(slope),
        0.5 * slope @ np.swapaxes(each.b, 1, 2),
        0.5 * np.swapaxes(each.a, 1, 2) @ slope,
        0.5,
      )
      for slope, each in zip(slopes[2:5], adapted, strict=True)
    ]
    for apply in (experts.apply_grouped, experts.apply_all):
      jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5),
        slopes_and_output(apply, limit, *others, *adapted, *biases),
        ((*slopes[:2], *wanted, *slopes[5:]), output),
      )

  def test_experts_alone_are_adapted_and_merged(self):
    model = dataclasses.replace(
      MODEL,
      num_layers=2,
      dense_layers=1,
      dense_mlp_width=6,
      shared_experts=1,
      sigmoid_router=True,
    )
    policy = Policy(model, COMPUTE, adaptation=LoraConfig(rank=2))
    trained, frozen = policy.split(
      drawn.fill(policy.abstract_params()), jax.random.key(1)
    )
    self.assertEqual(
      {stack: {*trained[stack]} for stack in trained},
      {"dense_layers": {"attention"}, "layers": {"attention", "experts"}},
    )
    names = {f"{n}_lora_{x}" for n in ("gate", "up", "down") for x in "ab"}
    self.assertEqual({*trained["layers"]["experts"]}, names)
    self.assertIn("exact_router", frozen["layers"]["experts"])
    whole = policy.whole(drawn.fill(trained), frozen)
    plain, of = policy.plain(whole), whole["layers"]["experts"]
    np.testing.assert_allclose(
      plain["layers"]["experts"]["up"],
      of["up"] + 8 * of["up_lora_a"] @ of["up_lora_b"],
      atol=1e-6,
    )
    rows = (np.arange(24)[None], np.arange(24)[None], np.ones((1, 24), int))
    logits = jax.jit(policy.logits)
    np.testing.assert_allclose(
      logits(whole, *rows), logits(plain, *rows), atol=1e-5
    )

  def test_adapters_that_no_file_could_hold(self):
    adaptation = LoraConfig(rank=2, targets=("gate", "q"))
    with self.assertRaisesRegex(ConfigError, "gate and up .* name both"):
      Policy(MODEL, COMPUTE, adaptation=adaptation)
