"""Greedy answers of a published model to 1, 8, 16 and 32 real prompts at once.

A prompt is the last 64 tokens of a solved word problem and a new one, in chat
markup; an answer has 32 tokens, whatever they are: an answer of one token is
the prefill, and decoding is the time of an answer less that. Peers take turns
with our engine. Those in float32 must begin every answer with the same tokens.

llama.cpp computes with weights of half the size (F16), and takes part where
BENCH_GGUF names a GGUF file of the same model, of any type.
"""

import functools
import os
import pathlib
import sys
import tempfile

import numpy as np

from bench import published, timing
from bench.line_peer import LinePeer, Pythons, peak_gib
from bench.rollout import decode

NUMBERS, PROMPT, ANSWER, EQUAL = (1, 8, 16, 32), 64, 32, 8
PEERS = {  # environment and script
  "transformers": ("torch", "hugging_face_decode.py"),
  "tunix": ("tunix", "tunix_decode.py"),
  "llama_cpp": ("llama_cpp", "llama_cpp_decode.py"),
}
SIDES = ("ours", *PEERS)


def measure(pairs: int, pythons: Pythons) -> dict[str, object]:
  """Measures the row; returns JSON values."""
  load_before = timing.load()
  policy, _, params = published.load()
  prompts = _prompts()
  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    (folder / "model").symlink_to(published.folder())
    np.save(folder / "prompts.npy", prompts)
    peers = {
      peer: LinePeer(pythons[PEERS[peer][0]], PEERS[peer][1], folder)
      for peer in _present(pythons)
    }
    rows = {}
    for number in NUMBERS:
      ours = {
        tokens: decode.Answers(policy, params, prompts[:number], tokens)
        for tokens in (ANSWER, 1)
      }
      turns = {("ours", tokens): ours[tokens] for tokens in ours}
      for peer, each in peers.items():
        for tokens in ours:
          ask = functools.partial(each.ask, f"{number} {tokens}")
          turns[peer, tokens] = ask
      timing.in_turn(dict(reversed(turns.items())), 1)  # compiles; ends with 32
      equal = {
        peer: _equal(peer, ours[ANSWER].tokens, folder, number)
        for peer in peers
      }
      times = timing.in_turn(turns, pairs)
      rows[number] = _row(number, times, load_before) | {
        "share_of_equal": equal
      }
    peak = {peer: each.peak_gib() for peer, each in peers.items()}
    for each in peers.values():
      each.close()
  return {
    "work": {
      "model": published.folder().name,
      "prompt": PROMPT,
      "answer": ANSWER,
    },
    "peers": {peer: each.version for peer, each in peers.items()},
    "limits": decode.limits(params),
    "at_once": rows,
    "peak_gib": {"ours": peak_gib()} | peak,
    "load_before": load_before,
  }


def _prompts() -> np.ndarray:
  """Returns [32, PROMPT] tokens."""
  encode = published.tokenizer().encode
  problems = published.questions(max(NUMBERS) + 1)
  texts = [
    f"{solved}{answers[1]}<|im_end|>\n{new}"
    for (solved, answers), (new, _) in zip(problems, problems[1:], strict=False)
  ]
  rows = [encode(text, add_special_tokens=False).ids for text in texts]
  return np.array([ids[-PROMPT:] for ids in rows], np.int32)


def _present(pythons: Pythons) -> list[str]:
  names = [name for name in PEERS if pythons[PEERS[name][0]].exists()]
  if "llama_cpp" in names and not os.environ.get("BENCH_GGUF"):
    sys.stderr.write("BENCH_GGUF names no file: llama.cpp is left out\n")
    names.remove("llama_cpp")
  return names


def _equal(peer: str, ours, folder: pathlib.Path, number: int) -> float:
  """Share of equal tokens, or of equal answers where these are in F16.

  Raises if answers in float32 begin differently.
  """
  stem = PEERS[peer][1].removesuffix("_decode.py")
  theirs = np.load(folder / f"{stem}_{number}.npy")
  if peer == "llama_cpp":
    return float(np.mean(list(map(_says, theirs.tolist(), ours.tolist()))))
  return decode.equal(peer, ours, theirs, EQUAL)


def _says(text: str, tokens: list[int]) -> bool:
  """Tests if a text begins as the answer does; llama.cpp goes on after it."""
  tokenizer = published.tokenizer()
  answer = tokenizer.decode(tokens, skip_special_tokens=False)
  return text.startswith(answer.partition("<|im_end|>")[0])


def _row(number: int, times, load_before: float) -> dict[str, object]:
  sides = [side for side in SIDES if (side, 1) in times]
  prefill = {side: times[side, 1] for side in sides}
  steps = {
    side: [
      timing.Times(a.wall - b.wall, a.cpu - b.cpu)
      for a, b in zip(times[side, ANSWER], times[side, 1], strict=True)
    ]
    for side in sides
  }
  return {
    "prefill": _stage(prefill, number * PROMPT),
    "decode": _stage(steps, number * (ANSWER - 1)),
    "contended": timing.contended(load_before, times),
  }


def _stage(times, num_tokens: int) -> dict[str, object]:
  """Rates of a stage, and ratios to the peers by time and by CPU time."""
  milliseconds = {side: timing.milliseconds(t) for side, t in times.items()}
  ours = milliseconds["ours"]
  peers = [side for side in times if side != "ours"]
  return {
    "milliseconds": milliseconds,
    "tokens_per_second": {
      side: 1e3 * num_tokens / each["wall"]
      for side, each in milliseconds.items()
    },
    "times_faster_than": {
      peer: timing.ratio(times[peer], times["ours"]) for peer in peers
    },
    "times_less_cpu_than": {
      peer: milliseconds[peer]["cpu"] / ours["cpu"] for peer in peers
    },
  }
