"""A task for AgentRL's own worker, in the manner of its calculator example.

Runs in a process of its own under the package `agentrl-worker`, unchanged:

  python -m agentrl.worker calculator --config calculator.yaml ...

or, with a heartbeat every second where the package's command line has eight:

  python -m tests.service.calculator_task grpc://host:5021 calculator
"""

import json
import logging
import sys

from agentrl.worker.task import Task
from agentrl.worker.task_worker import TaskWorker
from agentrl.worker.typings import (
  RewardHistoryItem,
  SampleStatus,
  TaskSampleExecutionResult,
)

PROBLEMS = {"sum": (2, 3), "big": (40, 2), "minus": (-4, 1)}
MAX_ROUNDS = 4


def _tool(name, *numbers):
  return {
    "type": "function",
    "function": {
      "name": name,
      "description": f"{name} of numbers",
      "parameters": {
        "type": "object",
        "properties": {number: {"type": "number"} for number in numbers},
        "required": list(numbers),
      },
    },
  }


TOOLS = [_tool("add", "a", "b"), _tool("submit", "answer")]


class Calculator(Task):
  """Asks for a sum; the indices are numbers, or texts if `texts` is true."""

  def __init__(self, texts=False, **options):
    super().__init__(tools=TOOLS, full_async=True, **options)
    self._texts = texts

  def get_indices(self):
    return list(PROBLEMS) if self._texts else [0, 1, 2, -1]

  async def start_sample(self, index, session):
    a, b = PROBLEMS[index] if self._texts else [*PROBLEMS.values()][index]
    return await self._play(a, b, session)

  async def start_sample_custom(self, task, session):
    return await self._play(task["a"], task["b"], session)

  async def _play(self, a, b, session):
    session.inject({"role": "user", "content": f"How much is {a} and {b}?"})
    for _ in range(MAX_ROUNDS):
      output = await session.action()
      calls = output.messages[-1].get("tool_calls") or []
      if not calls:
        session.inject({"role": "user", "content": "Call a tool."})
        continue
      call = calls[0]
      arguments = json.loads(call["function"]["arguments"])
      if call["function"]["name"] == "submit":
        right = arguments["answer"] == a + b
        session.inject(
          RewardHistoryItem(reward=float(right), metrics={"rounds": 1})
        )
        return TaskSampleExecutionResult(status=SampleStatus.COMPLETED)
      if "boom" in arguments:
        raise RuntimeError("the calculator is broken")
      session.inject(
        {
          "role": "tool",
          "tool_call_id": call["id"],
          "content": str(arguments["a"] + arguments["b"]),
        }
      )
    session.inject(RewardHistoryItem(reward=0))
    return TaskSampleExecutionResult(status=SampleStatus.TASK_LIMIT_REACHED)

  def calculate_overall(self, results):
    return {"total": len(results)}


def main():
  """Serves text indices to a gRPC controller; nobody reaches its own port."""
  controller, name, port = sys.argv[1:]
  logging.basicConfig(level=logging.INFO)
  task = Calculator(name=name, concurrency=2, texts=True)
  worker = TaskWorker(task, controller, heart_rate=1)
  worker.run("127.0.0.1", int(port))


if __name__ == "__main__":
  main()
