"""A run talks as its model does, and goes on doing so."""

import asyncio
import pathlib
import shutil
import tempfile

import numpy as np
from absl.testing import parameterized

from agentrl_jax.controller.player import ExpertPlayer
from agentrl_jax.data.chat.codec import ChatCodec
from agentrl_jax.data.chat.pretrained import ChatConfig, load_chat
from agentrl_jax.data.chat.tokenizer import train_tokenizer
from agentrl_jax.data.records import (
  EpisodeLimits,
  EpisodeSpec,
  Message,
  Status,
  Task,
  message_from_json,
)
from agentrl_jax.errors import ConfigError
from environments.arithmetic.environment import ADD, Arithmetic
from launch.config import chat
from launch.config.chat import share_chat
from launch.processes.group import Processes
from tests.data.chat import families
from tests.settings import WAITS, chat_config

VOCAB = 400


class Wire:
  """Between two processes of a test: what the first says, the other hears."""

  said = b""

  def share(self, value: bytes, what: str) -> bytes:
    self.said = value or self.said
    return self.said


class ChatOfARunTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    folder = self.enterContext(tempfile.TemporaryDirectory())
    self.run_root = pathlib.Path(folder) / "run"
    self.model = pathlib.Path(folder) / "model"
    self.model.mkdir()

  def write(self, name: str):
    source = (families.HERE / f"{name}.jinja").read_text()
    families.write_folder(self.model, families.SMALL[name], source)

  def keep(self, config: ChatConfig | None = None):
    chat.save_chat(self.run_root, str(self.model), config or chat_config())

  @parameterized.parameters(*families.SMALL)
  def test_experts_play_in_the_models_own_words(self, name):
    self.write(name)
    self.keep()
    environment = Arithmetic()
    player = ExpertPlayer(
      environments={environment.name: environment},
      codec=chat.codec_of(self.run_root, chat_config()),
      limits=EpisodeLimits(max_turns=8, max_tokens=6000, max_answer_tokens=500),
      mistakes={},
      waits=WAITS,
    )
    task = Task(environment.name, "train", 3)
    played = asyncio.run(
      player.play(EpisodeSpec(task=task, group_id="g", attempt=0, seed=1))
    )
    self.assertEqual(played.status, Status.COMPLETED)
    self.assertEqual(played.reward, 1.0)
    calls = [
      call.name
      for body in played.transcript
      for call in message_from_json(body).tool_calls
    ]
    self.assertNotEmpty(calls)
    self.assertNotIn("", calls)

  def test_a_run_keeps_its_chat(self):
    self.write("qwen25")
    self.keep()
    before = chat.codec_of(self.run_root, chat_config())
    self.write("glm4")
    self.keep()
    after = chat.codec_of(self.run_root, chat_config())
    self.assertEqual(before.stop_tokens, after.stop_tokens)
    self.assertEqual(after.decode(after.stop_tokens[:1]), "<|im_end|>")

  def test_a_run_keeps_the_template_that_it_was_given(self):
    self.write("qwen25")
    other = self.model / "other.jinja"
    other.write_text((families.HERE / "qwen3.jinja").read_text())
    for template in ("llama", str(other)):
      config = chat_config(template=template)
      shutil.rmtree(self.run_root, ignore_errors=True)
      self.keep(config)
      said = [Message("user", "Add 1 and 2.")]
      given = load_chat(self.model, config).start(said, [ADD])
      kept = chat.codec_of(self.run_root, config)
      np.testing.assert_array_equal(kept.start(said, [ADD]), given)
      # What is published shows the same to every program.
      published = pathlib.Path(self.model.parent / "published")
      published.mkdir(exist_ok=True)
      for path in chat.chat_files_of(self.run_root):
        shutil.copyfile(path, published / path.name)
      again = load_chat(published, chat_config()).start(said, [ADD])
      np.testing.assert_array_equal(again, given)

  def test_nothing_to_talk_with(self):
    with self.assertRaisesRegex(ConfigError, "no tokenizer.json in"):
      self.keep()
    with self.assertRaisesRegex(ConfigError, "no tokenizer at"):
      chat.codec_of(self.run_root, chat_config())

  def test_a_policy_from_scratch_has_a_chat_without_a_template(self):
    own = train_tokenizer(["Add 1 and 2."] * 20, vocab_size=VOCAB)
    own.save(str(self.model / "tokenizer.json"))
    self.keep()
    codec = chat.codec_of(self.run_root, chat_config())
    said = [Message("user", "Add 1 and 2.")]
    np.testing.assert_array_equal(
      codec.start(said, [ADD]), ChatCodec(own).start(said, [ADD])
    )

  @parameterized.parameters("", *families.SMALL)
  def test_other_processes_have_the_same_chat_and_no_files(self, name):
    """The run's own tokenizer, or a model's chat."""
    if name:
      self.write(name)
      self.keep()
    else:
      self.run_root.mkdir()
      tokenizer = train_tokenizer(families.TEXTS, vocab_size=300)
      tokenizer.save(str(self.run_root / "tokenizer.json"))
    wire, config = Wire(), chat_config(thinking=False)
    leading, other = (
      share_chat(Processes(index, 2, wire), root, config)
      for index, root in enumerate((self.run_root, self.run_root / "no_files"))
    )
    said = [Message("user", "What is 2 + 3?")]
    np.testing.assert_array_equal(
      leading.start(said, (ADD,)), other.start(said, (ADD,))
    )
    tools = (ADD,) if name != families.WITHOUT_GRAMMAR else ()
    self.assertEqual(leading.call_grammar(tools), other.call_grammar(tools))

  def test_a_date_is_year_month_day(self):
    with self.assertRaisesRegex(ConfigError, "'today' is no date"):
      chat_config(date="today")
