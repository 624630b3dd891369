"""The decoder says what transformers' models say, and learns as they do."""

import pathlib
import tempfile
import unittest

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import absltest, parameterized

from agentrl_jax.model.export import Tensors
from tests.model import families

LENGTHS = (19, 24)  # of the rows of a batch
ROW = 24  # tokens
PROMPTS = (5, 11)  # tokens of each prompt
NEW = 32  # tokens of a greedy answer
# Half of the families tied, half not; the other halves are `full`.
FEW = [("qwen2", False), ("qwen3", True), ("llama", True), ("glm4", False)]
# A program is run once: most of what LLVM could do is not worth it.
QUICK = {
  "xla_backend_optimization_level": 0,
  "xla_llvm_disable_expensive_passes": True,
}


@unittest.skipIf(families.torch is None, families.WITHOUT)
class TransformersTest(parameterized.TestCase):
  @parameterized.parameters(*FEW)
  def test_logits_gradients_and_greedy_answers(self, family, tied):
    self._compare(families.describe(family, tied=tied))

  @parameterized.product(
    family=families.NAMES, tied=(True, False), seed=tuple(range(5))
  )
  @pytest.mark.full
  def test_other_sizes(self, family, tied, seed):
    self._compare(families.describe(family, tied=tied, seed=seed))

  def _compare(self, described):
    model = families.build(described)
    with tempfile.TemporaryDirectory() as folder:
      families.saved(model, pathlib.Path(folder))
      policy, params = families.load(pathlib.Path(folder))
    rng = np.random.default_rng(0)
    token_BT = rng.integers(0, described["vocab_size"], (2, ROW))
    self._compare_updates(model, policy, params, token_BT)
    self._compare_answers(model, policy, params, token_BT)

  def _compare_updates(self, model, policy, params, token_BT):
    """Two rows of different lengths, of which the shorter is padded."""
    real_BT = np.arange(ROW) < np.array(LENGTHS)[:, None]
    position_BT = np.where(real_BT, np.arange(ROW), 0)

    def loss(params):
      logits = policy.logits(
        params, token_BT, position_BT, real_BT.astype(np.int32)
      )
      logprob_BTV = jax.nn.log_softmax(logits)
      chosen_BT = jnp.take_along_axis(
        logprob_BTV[:, :-1], token_BT[:, 1:, None], -1
      )[..., 0]
      return -jnp.sum(chosen_BT, where=real_BT[:, 1:]), logits

    gradient, logits = jax.jit(
      jax.grad(loss, has_aux=True), compiler_options=QUICK
    )(params)
    torch = families.torch
    theirs = model(
      torch.tensor(token_BT),
      attention_mask=torch.tensor(real_BT.astype(np.int64)),
      position_ids=torch.tensor(position_BT),
    ).logits
    wanted = theirs.detach().numpy()
    self.assertGreater(np.abs(wanted).max(), 0.5)
    np.testing.assert_allclose(
      logits[real_BT], wanted[real_BT], atol=1e-4, rtol=0
    )
    chosen = torch.log_softmax(theirs, -1)[:, :-1].gather(
      -1, torch.tensor(token_BT[:, 1:, None])
    )[..., 0]
    (-chosen[torch.tensor(real_BT[:, 1:])].sum()).backward()
    self._compare_gradients(model, policy, gradient)

  def _compare_gradients(self, model, policy, gradient):
    named = Tensors(policy.config, np.dtype(np.float32))
    theirs = {
      name: weight.grad.numpy() for name, weight in model.named_parameters()
    }
    self.assertEqual(set(named.entries), set(theirs))
    for name, wanted in theirs.items():
      found = named.gathered(gradient, name)
      self.assertLessEqual(
        np.abs(found - wanted).max(), 1e-3 * np.abs(wanted).max(), name
      )

  def _compare_answers(self, model, policy, params, token_BT):
    """Prompts of different lengths decoded at once, and each by itself."""
    found_BT = _greedy(policy, policy.unstacked(params), token_BT)
    torch = families.torch
    for b, length in enumerate(PROMPTS):
      wanted = model.generate(
        torch.tensor(token_BT[b : b + 1, :length]),
        attention_mask=torch.ones(1, length, dtype=torch.long),
        max_new_tokens=NEW,
        do_sample=False,
      )
      np.testing.assert_array_equal(found_BT[b], wanted[0, length:].numpy())


def _greedy(policy, params, token_BT):
  """The likeliest token after each prompt, fed back, [B, NEW].

  A lane takes its prompt token by token, then what it answered.
  """
  length_B = np.array(PROMPTS)
  cache = policy.empty_cache(2, max(PROMPTS) + NEW)

  def step(carry, n):
    token_B, cache = carry
    hidden_B1D, cache = policy.extend(
      params, cache, token_B[:, None], jnp.full(2, n), jnp.ones(2, jnp.int32)
    )
    next_B = policy.unembed(params, hidden_B1D[:, 0]).argmax(-1)
    given_B = jnp.asarray(token_BT)[:, n + 1]
    return (jnp.where(n + 1 < length_B, given_B, next_B), cache), next_B

  decode = jax.jit(
    lambda cache: (
      jax.lax.scan(
        step, (token_BT[:, 0], cache), jnp.arange(max(PROMPTS) + NEW - 1)
      )[1].T
    ),
    compiler_options=QUICK,
  )
  said_BT = np.asarray(decode(cache))
  return [said_BT[b, n - 1 : n - 1 + NEW] for b, n in enumerate(PROMPTS)]


if __name__ == "__main__":
  absltest.main()
