"""The decoder says what transformers' models say, and learns as they do."""

import pathlib
import tempfile
import unittest

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import parameterized

from agentrl_jax.model.hugging_face.config import read_model
from agentrl_jax.model.hugging_face.export import Tensors, write_params
from tests.model.hugging_face import families

LENGTHS = (19, 24)  # of the rows of a batch
ROW = 24  # tokens
PROMPTS = (5, 11)  # tokens of each prompt
NEW = 32  # tokens of a greedy answer
# Half of the families tied, half not, and each dtype; others are `full`.
FEW = (
  ("qwen2", False, "bfloat16"),
  ("qwen3", True, "float16"),
  ("llama", True, "float32"),
  ("glm4", False, "bfloat16"),
  ("mistral", True, "float32"),
  ("olmo2", False, "bfloat16"),
  ("qwen3_moe", False, "bfloat16"),
  ("glm4_moe", False, "bfloat16"),
  ("deepseek_v3", False, "bfloat16"),
  ("glm4_moe_lite", True, "float32"),
  ("gemma3_text", True, "bfloat16"),
  ("gpt_oss", False, "float32"),
  ("qwen3_next", False, "bfloat16"),
  ("qwen3_5_text", True, "float32"),
  ("qwen3_5_moe_text", False, "bfloat16"),
  ("gemma4_text", True, "float32"),
  ("gemma4_e2b", True, "float32"),
)
FILE_BYTES = 5_000  # less than any of these models


@unittest.skipIf(families.torch is None, families.WITHOUT)
class TransformersTest(parameterized.TestCase):
  @parameterized.parameters(*FEW)
  @pytest.mark.slow
  def test_files_logits_gradients_and_greedy_answers(self, family, tied, dtype):
    self._compare(families.describe(family, tied=tied), dtype)

  @pytest.mark.slow
  def test_the_text_of_a_model_that_sees(self):
    """Published Gemma 3 from 4B on; here with the names of either version."""
    transformers, torch = families.transformers, families.torch
    text = families.describe("gemma3_text", tied=True)
    model = families.build_seeing(text)
    token_BT = np.random.default_rng(0).integers(0, text["vocab_size"], (1, 9))
    wanted = model(torch.tensor(token_BT)).logits.detach().numpy()
    for prefix in ("language_model.model.", "model.language_model."):
      with tempfile.TemporaryDirectory() as root:
        folder = families.saved(model, pathlib.Path(root), max_shard_size=10**9)
        path = folder / "model.safetensors"
        tensors = families.safetensors.torch.load_file(path)
        self.assertTrue(any("vision_tower" in name for name in tensors))
        renamed = {
          prefix + name.partition("language_model.")[2].removeprefix("model.")
          if "language_model." in name
          else name: tensor
          for name, tensor in tensors.items()
        }
        families.safetensors.torch.save_file(renamed, path)
        policy, params = families.load(folder)
        again = folder / "again"
        write_params(
          again,
          params,
          policy.config,
          context=512,
          dtype="float32",
          beside=folder,
        )
        loaded = transformers.AutoModelForCausalLM.from_pretrained(again)
      found = policy.logits(
        params, token_BT, np.arange(9)[None], np.ones_like(token_BT)
      )
      np.testing.assert_allclose(found, wanted, atol=1e-4)
      self.assertIsInstance(loaded, transformers.Gemma3ForCausalLM)
      found = loaded.float().eval()(torch.tensor(token_BT)).logits
      np.testing.assert_allclose(found.detach().numpy(), wanted, atol=1e-4)

  @parameterized.product(
    family=families.NAMES, tied=(True, False), seed=tuple(range(5))
  )
  @pytest.mark.full
  @pytest.mark.timeout(900)
  def test_other_sizes(self, family, tied, seed):
    dtype = ("float32", "bfloat16", "float16")[seed % 3]
    self._compare(families.describe(family, tied=tied, seed=seed), dtype)

  def _compare(self, described, dtype):
    model = families.build(described, dtype=dtype)
    with tempfile.TemporaryDirectory() as root:
      first = families.saved(
        model, pathlib.Path(root) / "first", max_shard_size=FILE_BYTES
      )
      policy, params = families.load(first)
      again = pathlib.Path(root) / "again"
      write_params(
        again,
        params,
        policy.config,
        context=512,
        dtype=dtype,
        max_file_bytes=FILE_BYTES,
      )
      self._compare_files(first, again, model)
    model = model.float()
    rng = np.random.default_rng(0)
    token_BT = rng.integers(0, described["vocab_size"], (2, ROW))
    self._compare_updates(model, policy, params, token_BT)
    self._compare_answers(model, policy, params, token_BT)

  def _compare_files(self, first, again, model):
    """Bit for bit, in several files; and transformers loads what we wrote."""
    self.assertGreater(len(list(again.glob("*.safetensors"))), 1)
    self.assertEqual(_contents(again), _contents(first))
    # Mistral's is written as the same Llama.
    self.assertEqual(read_model(again)[0], read_model(first)[0])
    loaded = families.transformers.AutoModelForCausalLM.from_pretrained(
      again, dtype=model.dtype
    )
    for name, weight in loaded.state_dict().items():
      expected = model.state_dict()[name]
      if name.endswith(("A_log", "dt_bias")):  # float32 in the files alone
        expected = expected.to(weight.dtype)
      self.assertTrue(families.torch.equal(weight, expected), name)

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

    gradient, logits = jax.jit(jax.grad(loss, has_aux=True))(params)
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
    theirs = dict(_gradients(model))
    self.assertEqual(set(named.entries), set(theirs))
    for name, wanted in theirs.items():
      found = named.gathered(gradient, name)
      if name.endswith("e_score_correction_bias"):  # loads stand in its place
        self.assertGreater(found.max(), 0)
        np.testing.assert_array_equal(found, found.round())
        continue
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


def _gradients(model):
  """Every tensor's gradient; transformers joins in memory what files split."""
  for name, buffer in model.named_buffers():
    if name in model.state_dict():  # a router's bias, which has none
      yield name, np.zeros(buffer.shape)
  for name, weight in model.named_parameters():
    if not weight.numel():  # of no shared experts
      continue
    gradient = weight.grad.numpy()
    module, _, kind = name.rpartition(".")
    is_fused = model.config.model_type in ("gpt_oss", "gemma4_text")
    if is_fused or not module.endswith(".experts"):
      yield name, gradient
      continue
    for expert, matrix in enumerate(gradient):
      names = ("gate", "up") if kind == "gate_up_proj" else ("down",)
      for part, rows in zip(names, np.split(matrix, len(names)), strict=True):
        yield f"{module}.{expert}.{part}_proj.weight", rows


def _contents(folder: pathlib.Path) -> dict[str, tuple[str, bytes]]:
  """Every tensor's dtype and bytes, as the format's own library has them."""
  found = {}
  for path in sorted(folder.glob("*.safetensors")):
    with families.safetensors.safe_open(path, framework="pt") as file:
      for name in file.keys():  # noqa: SIM118 - it is no mapping
        tensor = file.get_tensor(name).contiguous()
        raw = tensor.view(families.torch.uint8).numpy().tobytes()
        if raw:
          found[name] = (str(tensor.dtype), raw)
  return found


def _greedy(policy, params, token_BT):
  """The likeliest token after each prompt, fed back, [B, NEW].

  A slot takes its prompt token by token, then what it answered.
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
    )
  )
  said_BT = np.asarray(decode(cache))
  return [said_BT[b, n - 1 : n - 1 + NEW] for b, n in enumerate(PROMPTS)]
