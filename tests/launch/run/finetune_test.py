"""configs/finetune.py: a run that knows nothing but a Hugging Face folder."""

import json
import pathlib
import shlex
import tempfile

import pytest
from absl.testing import absltest

from agentrl_jax.data.chat.pretrained import ChatConfig, load_chat
from agentrl_jax.data.records import Message
from agentrl_jax.errors import ConfigError
from configs import calculator, finetune, gemma3, quickstart, smollm2
from environments.word_problems.environment import ANSWER, CALCULATE
from launch.config.settings import read_settings
from launch.reports.metrics_file import read_metrics
from launch.run.training import train
from tests.launch.export_test import MODEL, write_model

STEPS = 3
# Smaller and shorter in every respect, and nothing about the model.
SMALL = {
  "compile_cache": "",
  "environments.dbbench.options.system_prompt": "short",
  "environments.webshop.options.system_prompt": "short",
  "episode.max_turns": 2,
  "episode.max_answer_tokens": 8,
  "train.steps": STEPS,
  "group.size": 2,
  "admission.groups_per_step": 2,
  "admission.max_concurrent_groups": 2,
  "queue.max_groups": 2,
  "engine.slots": (4, 2),
  "engine.num_slot_sizes": 1,
  "engine.lengths": (),
  "engine.prefill_chunks": (64,),
  "engine.prefill_slots": 4,
  "evaluation.num_tasks": 1,
  # Random weights earn nothing that tells attempts apart: the KL trains them.
  "loss.kl_coefficient": 1.0,
  "advantage.keep": "all",
}


@pytest.mark.timeout(900)
class FinetuneTest(absltest.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.root = pathlib.Path(
      cls.enterClassContext(tempfile.TemporaryDirectory())
    )
    cls.model = cls.root / "tiny-qwen"
    write_model(cls.model)

  def test_a_folder_is_all_it_takes(self):
    settings = read_settings(finetune.get_config(str(self.model)))
    self.assertEqual(settings.model, MODEL)
    self.assertEqual(settings.warm_start.epochs, 0)
    config = finetune.get_config(str(self.model))
    config.warm_start.copy_gain = 4.0
    with self.assertRaisesRegex(ConfigError, "copy_gain=4.0 means nothing"):
      read_settings(config)

  def test_tasks_of_a_published_model_fit_their_lengths(self):
    for names, made in (
      (["word_problems"], smollm2),
      (["word_problems"], gemma3),
      ([*calculator.TASKS], calculator),
    ):
      settings = read_settings(made.get_config(str(self.model)))
      self.assertEqual(list(settings.task_ids), names)
      self.assertLessEqual(settings.episode.max_tokens, settings.engine.context)

  def test_the_calculators_template_shows_tools_calls_and_results(self):
    config = calculator.get_config(str(self.model))
    codec = load_chat(self.model, ChatConfig(**config.chat))
    question = Message("user", "1 + 1?")
    prompt = codec.decode(codec.start((question,), (CALCULATE, ANSWER)))
    self.assertIn("calculate(left, operator, right): Computes", prompt)
    self.assertTrue(prompt.endswith("assistant\n"), prompt)
    call = '{"name": "answer", "parameters": {"number": 2}}'
    answer = codec.read(codec.encode(call), (ANSWER,))
    self.assertEqual(answer.tool_calls[0].arguments, '{"number": 2}')

  @pytest.mark.full
  def test_it_trains(self):
    config = finetune.get_config(str(self.model))
    config.update_from_flattened_dict(
      SMALL | {"workdir": str(self.root / "runs")}
    )
    train(config)
    run = next(p.parent for p in self.root.glob("runs/*/config.yaml"))
    rows = read_metrics(run / "metrics.jsonl")
    steps = [row.step for row in rows if row.stage == "rl"]
    self.assertEqual(steps, list(range(1, STEPS + 1)))
    summary = json.loads((run / "summary.json").read_text())
    stages = {e["stage"] for e in summary["evaluations"]}
    self.assertEqual(stages, {"warm_start", "rl", "scripted", "expert"})

  def test_all_keys_that_a_folder_replaces_are_named_at_once(self):
    config = quickstart.get_config()
    config.pretrained.path = str(self.model)
    with self.assertRaises(ConfigError) as caught:
      read_settings(config)
    said = str(caught.exception)
    for key in (
      "model.embedding_scale=7.0",
      "tokenizer.vocab_size=4192",
      "tokenizer.whole_lines=16",
      "tokenizer.whole_tokens=",
      "warm_start.copy_gain=4.0",
      "configs/finetune.py",
    ):
      self.assertIn(key, said)
    self.assertLess(len(said), 700)  # though one value has a thousand texts
    # What it says to set is all there is to set.
    flags = shlex.split(said.partition("; set ")[2].rpartition(", or")[0])
    for flag in flags:
      key, _, value = flag.removeprefix("--config.").partition("=")
      config.update_from_flattened_dict({key: _value(value)})
    read_settings(config)


def _value(text: str):
  return () if text == "()" else json.loads(text)
