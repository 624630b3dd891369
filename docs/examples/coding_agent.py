"""A coding agent is trained as it is: this file is a config and its agents.

  make clients   # or any other way by which `claude` comes into PATH
  python -m launch.train --config=docs/examples/coding_agent.py:MODEL

The run starts this file as its agents' program. Each episode is one start of
Claude Code in a folder of its own: the episode's id is its API key, and the
reward is the share of right words in what it says at last. Another agent is
another COMMAND with other variables: docs/serving.md has those of some. Agents
run with your rights; `--tools` lets this one read files only.
"""

import concurrent.futures
import contextlib
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import urllib.request

NAME = "fruits"
FRUITS = ("apples", "pears", "plums", "figs")
COMMAND = (
  "claude",
  "-p",
  "Which fruit is in a.txt, and which is in b.txt?",
  "--tools",
  "Read",
  "--allowedTools",
  "Read",
  "--system-prompt",
  "Read files, then answer in one sentence.",
  "--output-format",
  "stream-json",
  "--verbose",
)
NUM_AGENTS, LIMIT_S = 4, 1800
# What the server refuses, and the end that it is: the policy's doing. After any
# other error the run offers the episode again.
ENDS = {
  "prompt is too long": "agent context limit",
  "has had its": "task limit reached",
  "output token maximum": "agent context limit",  # answers cut, again and again
}


def get_config(model):
  """`model` is the folder after the colon on the command line."""
  # Imported here because the agents' program needs neither.
  from configs import environments, finetune

  c = finetune.get_config(model)
  c.name = NAME
  with c.unlocked():
    c.environments[NAME] = environments.entry(
      "agentrl_jax.env.indexed:OfAgents",
      options={"num_train": 1000, "num_test": 100},
    )
    c.tasks.weights[NAME] = 1.0
  c.tasks.names = (NAME,)
  c.agents.port = 0
  c.agents.program = f"{sys.executable} {__file__} {{url}} {{model}}"
  c.episode.update(max_turns=6, max_tokens=16384)
  c.train.row_length = c.engine.context = 16384
  return c


def play(url, model, task, id):
  """Returns the reward and the status of one episode."""
  rng = random.Random(f"{task['split']}/{task['index']}")
  right = rng.sample(FRUITS, 2)
  with tempfile.TemporaryDirectory() as folder:
    for name, fruit in zip(("a.txt", "b.txt"), right, strict=True):
      (pathlib.Path(folder) / name).write_text(fruit)
    variables = {
      "HOME": folder,
      "ANTHROPIC_BASE_URL": url.removesuffix("/v1"),
      "ANTHROPIC_API_KEY": id,
      "ANTHROPIC_MODEL": model,
      "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    try:
      done = subprocess.run(
        COMMAND,
        cwd=folder,
        env=os.environ | variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
      )
    except subprocess.TimeoutExpired:
      return 0.0, "cancelled"
  said = done.stdout + done.stderr
  result = said.rpartition('"result":')[2].strip()[:300]
  print(id, done.returncode, result, flush=True)  # noqa: T201
  status = "cancelled" if done.returncode else "completed"
  for text, end in ENDS.items():
    if text in said:
      status = end
  return score(done.stdout, right), status


def score(said, right):
  """Returns the share of right words in the last line, the agent's result."""
  last = said.strip().rpartition("\n")[2]
  return sum(fruit in last for fruit in right) / len(right)


def post(url, **body):
  """Returns the server's answer; None if it has none, or the run is over."""
  body, head = json.dumps(body).encode(), {"Content-Type": "application/json"}
  with contextlib.suppress(OSError):
    request = urllib.request.Request(url, body, head)
    with urllib.request.urlopen(request, timeout=120) as response:
      return json.loads(response.read() or "null")


def work(url, model):
  """Plays episodes until the run offers no more."""
  while episode := post(f"{url}/episodes", wait_s=60):
    reward, status = play(url, model, episode["task"], episode["id"])
    post(f"{url}/episodes/{episode['id']}", reward=reward, status=status)


def main(url, model):
  """Plays with several agents at a time."""
  with concurrent.futures.ThreadPoolExecutor(NUM_AGENTS) as pool:
    for worker in [pool.submit(work, url, model) for _ in range(NUM_AGENTS)]:
      worker.result()


if __name__ == "__main__":
  main(*sys.argv[1:3])
