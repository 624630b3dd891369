"""Recorded episodes as tokens: what was observed and what was answered.

`transcripts` reads AgentBench's from $AGENTRL_DATA, in the template and the
tokenizer of Qwen. `of_run` reads the last trained groups of a run, in the run's
own tokenizer. There is one transcript per task, so episodes of one environment
stand for a group.
"""

import gzip
import json
import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from agentrl_jax.data.record_file import read_groups
from bench.qwen_chat import make_tokenizer

# (observation, answer) of each turn, int32 both.
Episode = list[tuple[np.ndarray, np.ndarray]]
Groups = Sequence[Sequence[Episode]]
ROOT = pathlib.Path(__file__).parents[1]
ENVIRONMENTS = ("alfworld", "dbbench", "os", "webshop")
_TOOLS: Mapping[str, Mapping[str, Mapping[str, str]]] = {
  "alfworld": {"take_action": {"action": "string"}},
  "dbbench": {
    "execute_sql": {"query": "string"},
    "commit_final_answer": {"answers": "array"},
  },
  "os": {
    "bash_action": {"script": "string"},
    "finish_action": {"thought": "string"},
    "answer_action": {"answer": "string"},
  },
  "webshop": {
    "search_action": {"keywords": "string"},
    "click_action": {"value": "string"},
  },
}
_HEAD = (
  "\n\n# Tools\n\nYou may call functions with these signatures:\n<tools>\n"
)
_TAIL = (
  "\n</tools>\n\nFor each call, return a JSON object within <tool_call> tags:\n"
  '<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n'
  "</tool_call>"
)


def transcripts(environment: str, attempts: int) -> Iterator[list[Episode]]:
  """Yields groups of an environment's transcripts."""
  data = os.environ.get("AGENTRL_DATA", ROOT.parent / "shared" / "data")
  path = pathlib.Path(data) / f"transcripts/{environment}-std-qwen-8b.jsonl.gz"
  tokenizer = make_tokenizer()
  with gzip.open(path, "rt", encoding="utf-8") as lines:
    outputs = [json.loads(line).get("output") or {} for line in lines]
  episodes = [
    _episode(environment, output["result"]["messages"], tokenizer)
    for output in outputs
    if (output.get("result") or {}).get("messages")
  ]
  for begin in range(0, len(episodes) - attempts + 1, attempts):
    yield episodes[begin : begin + attempts]


def of_run(folder: pathlib.Path) -> Iterator[list[Episode]]:
  """Yields the groups of a run's last batches, the newest batch first."""
  paths = (folder / "trajectories").glob("[0-9]*")
  for path in sorted(paths, reverse=True):
    for group in read_groups(path):
      yield [
        [(turn.observation, turn.sampled) for turn in trajectory.turns]
        for trajectory in group.trajectories
      ]


def _episode(
  environment: str, messages: Sequence[Mapping[str, Any]], tokenizer: Tokenizer
) -> Episode:
  def encode(text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False).ids)

  end = encode("<|im_end|>")[:1]
  schemas = "\n".join(
    json.dumps({"name": name, "parameters": parameters})
    for name, parameters in _TOOLS[environment].items()
  )
  system = messages[0]["content"] + _HEAD + schemas + _TAIL
  observed = encode(f"<|im_start|>system\n{system}") + end
  turns: Episode = []
  for message in messages[1:]:
    content = message.get("content") or ""
    if message["role"] == "assistant":
      observed += encode("\n<|im_start|>assistant\n")
      answer = encode(_answer_text(content, message)) + end
      turns.append((np.array(observed, np.int32), np.array(answer, np.int32)))
      observed = []
      continue
    if message["role"] == "tool":
      content = f"<tool_response>\n{content}\n</tool_response>"
    observed += encode(f"\n<|im_start|>user\n{content}") + end
  return turns


def _answer_text(content: str, message: Mapping[str, Any]) -> str:
  parts = [content] if content else []
  for call in message.get("tool_calls") or []:
    function = call["function"]
    body = (
      f'{{"name": "{function["name"]}", "arguments": {function["arguments"]}}}'
    )
    parts.append(f"<tool_call>\n{body}\n</tool_call>")
  return "\n".join(parts)


def renumbered(sources: Mapping[str, Groups]) -> dict[str, Groups]:
  """Numbers tokens by their first use, for a vocabulary that is smaller."""
  ids: dict[int, int] = {}

  def row(tokens: np.ndarray) -> np.ndarray:
    return np.array(
      [ids.setdefault(token, len(ids)) for token in tokens.tolist()], np.int32
    )

  return {
    name: [
      [[(row(seen), row(said)) for seen, said in episode] for episode in group]
      for group in groups
    ]
    for name, groups in sources.items()
  }
