"""A published model without tokens for tool calls calls tools by a grammar.

AGENTRL_SMOLLM2 names the Hugging Face folder of SmolLM2-135M-Instruct.
"""

import json
import os
import pathlib

import numpy as np
import pytest

from agentrl_jax.data.chat.pretrained import load_chat
from agentrl_jax.data.records import Message, Tool
from agentrl_jax.errors import ConfigError
from tests.data.grammar.call_grammars import bits_of
from tests.settings import chat_config

FOLDER = pathlib.Path(os.environ.get("AGENTRL_SMOLLM2", "/none"))
TOOLS = (
  Tool(
    "calculate",
    "Calculates an expression.",
    {
      "properties": {
        "expression": {"type": "string", "maxLength": 16},
        "round": {"type": "boolean"},
      },
      "required": ["expression"],
    },
  ),
  Tool(
    "answer",
    "Gives the answer.",
    {
      "properties": {
        "value": {"type": "integer", "minimum": 0, "maximum": 999}
      },
      "required": ["value"],
    },
  ),
)
QUESTIONS = (
  "Ana has 7 pens and gives away 3. How many pens are left?",
  "Say hello.",
)
MOST = 48  # tokens of an answer


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore:.past_key_values:FutureWarning")
@pytest.mark.skipif(not FOLDER.is_dir(), reason="no folder in AGENTRL_SMOLLM2")
@pytest.mark.parametrize("template", ["hermes", "llama"])
def test_required_calls_of_a_published_model_are_read(template):
  torch = pytest.importorskip("torch")
  transformers = pytest.importorskip("transformers")
  model = transformers.AutoModelForCausalLM.from_pretrained(
    FOLDER, dtype=torch.float32
  )
  codec = load_chat(FOLDER, chat_config(template=template))
  grammars = codec.grammars(model.config.vocab_size)
  grammar = codec.call_grammar(TOOLS, choice="required", parallel=False)
  rng = np.random.default_rng(0)
  called = []
  for question in QUESTIONS:
    for temperature in (0.0, 1.0):
      ids = codec.start([Message("user", question)], TOOLS)
      sampled = answer_of(model, grammars, grammar, ids, temperature, rng)
      if sampled[-1] not in codec.stop_tokens:
        continue  # cut off
      (call,) = codec.read(sampled, TOOLS).tool_calls
      called.append(call.name)
      arguments = json.loads(call.arguments)
      key = {"calculate": "expression", "answer": "value"}[call.name]
      assert key in arguments
  assert len(called) >= len(QUESTIONS)


def answer_of(model, grammars, grammar, ids, temperature, rng):
  torch = pytest.importorskip("torch")
  state, sampled, cache = grammars.begin(grammar), [], None
  new = torch.tensor([ids.tolist()])
  while len(sampled) < MOST:
    with torch.no_grad():
      out = model(new, past_key_values=cache, use_cache=True)
    cache, logits = out.past_key_values, out.logits[0, -1].double().numpy()
    allowed = bits_of(state.allowed())[: len(logits)]
    logits = np.where(allowed, logits, -np.inf)
    noise = rng.gumbel(size=len(logits)) if temperature else 0.0
    token = int(np.argmax(logits / (temperature or 1.0) + noise))
    sampled.append(token)
    if token in grammars.stop_tokens:
      break
    state.take(token)
    new = torch.tensor([[token]])
  return sampled


@pytest.mark.slow
@pytest.mark.skipif(not FOLDER.is_dir(), reason="no folder in AGENTRL_SMOLLM2")
def test_its_own_template_is_for_tasks_without_tools():
  codec = load_chat(FOLDER, chat_config())
  text = codec.decode(codec.start([Message("user", "Hi")], ()))
  assert text.startswith("<|im_start|>system\nYou are a helpful AI assistant")
  with pytest.raises(ConfigError, match="chat.template=hermes"):
    codec.start([Message("user", "Hi")], TOOLS)
