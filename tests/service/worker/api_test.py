"""Tests of AgentRL's protocol over real HTTP, word for word."""

import unittest

import aiohttp

from agentrl_jax.service.worker.hosting import HostLimits
from agentrl_jax.service.worker.main import WorkerConfig, serve
from environments.arithmetic.environment import Arithmetic
from tests.env.moody import END_JSON, Moody, says

SAY_JSON = {
  "type": "function",
  "function": {
    "name": "say",
    "description": "Says it.",
    "parameters": {"type": "object", "properties": {}},
  },
}


class WorkerApiTest(unittest.IsolatedAsyncioTestCase):
  async def asyncSetUp(self):
    self.http = await self.enterAsyncContext(aiohttp.ClientSession())
    self.environment = Moody()

  async def serve(self, limits=None, **config):
    self.url = await self.enterAsyncContext(
      serve(
        self.environment,
        WorkerConfig(port=0, **config),
        limits or HostLimits(concurrency=2),
      )
    )

  async def get(self, path):
    async with self.http.get(f"{self.url}/{path}") as response:
      return response.status, await response.json()

  async def post(self, path, body):
    async with self.http.post(f"{self.url}/{path}", json=body) as response:
      return response.status, await response.json()

  async def start(self, id=7, index=0, **more):
    return await self.post(
      "start_sample", {"session_id": id, "index": index, **more}
    )

  async def interact(self, words, id=7):
    return await self.post(
      "interact", {"session_id": id, "messages": says(words)}
    )

  async def test_an_episode_word_for_word(self):
    await self.serve()
    async with self.http.post(
      f"{self.url}/start_sample", json={"session_id": 7, "index": 0}
    ) as response:
      self.assertEqual(response.headers["session_id"], "7")
      first = await response.json()
    self.assertEqual(
      first,
      {
        "messages": [{"role": "user", "content": "Well?"}],
        "tools": [SAY_JSON],
        "plays_once": True,
        "status": "running",
        "finish": False,
        "reward": 0.0,
        "metric": {},
      },
    )
    self.assertEqual(await self.get("get_sessions"), (200, {"7": 0}))
    self.assertEqual(
      await self.get("worker_status"), (200, {"concurrency": 2, "current": 1})
    )
    self.assertEqual(
      await self.post("sample_status", {"session_id": 7}),
      (200, {"session_id": 7, "index": 0, "status": "running"}),
    )
    status, body = await self.interact("hm")
    del first["plays_once"]  # is said once
    said = {"messages": [{"role": "user", "content": "You say hm."}]}
    self.assertEqual(status, 200)
    self.assertEqual(body, {"session_id": 7, "env_out": first | said})
    self.assertEqual(
      await self.interact("end"), (200, {"session_id": 7, "env_out": END_JSON})
    )
    self.assertEqual(await self.get("get_sessions"), (200, {}))

  async def test_describes_splits_and_indices(self):
    await self.serve(num_indices=2)
    self.assertEqual(await self.get("get_indices"), (200, [0, 1]))
    indices = {"list": [0, 1, 2, 3, 4]}
    expected = {"name": "moody", "split": "test", "indices": indices}
    self.assertEqual(await self.get("describe"), (200, expected))
    _, body = await self.get("describe?split=train")
    self.assertEqual(body["indices"], {"list": [7]})
    status, body = await self.get("describe?split=dev")
    self.assertEqual(
      (status, body), (400, {"detail": "moody has no split 'dev'"})
    )

  async def test_a_long_range_is_not_written_out(self):
    self.environment = Arithmetic(num_tasks=10**12)
    await self.serve(split="train", num_indices=3)
    self.assertEqual(await self.get("get_indices"), (200, [0, 1, 2]))
    _, body = await self.get("describe")
    self.assertEqual(body["indices"], {"range": [0, 10**12, 1]})
    status, _ = await self.start(index=10**12 - 1)
    self.assertEqual(status, 200)

  async def test_seed_and_split_are_ours_and_optional(self):
    await self.serve()
    await self.start(id=7)
    await self.start(id=8, index=7, split="train", seed=3)
    self.assertEqual(self.environment.seeds, [7, 3])

  async def test_a_broken_environment_is_a_task_error(self):
    await self.serve()
    await self.start()
    with self.assertLogs("agentrl_jax.service.worker.hosting", "ERROR"):
      status, body = await self.interact("break")
    self.assertEqual(status, 200)
    self.assertEqual(body["env_out"]["status"], "task error")
    self.assertTrue(body["env_out"]["finish"])
    self.assertIn("ZeroDivisionError: of mine", body["env_out"]["error"])
    self.assertEqual((await self.interact("hm"))[0], 400)
    with self.assertLogs("agentrl_jax.service.worker.hosting", "ERROR"):
      status, body = await self.start(index=1)
    self.assertEqual(status, 500)
    self.assertIn("the disk is full", body["detail"])

  async def test_bad_requests_are_explained(self):
    await self.serve()
    await self.start()
    first = {"session_id": 1, "index": 0}
    for path, body, words in (
      ("start_sample", {"session_id": 1}, "index must be an integer"),
      ("start_sample", {"index": 1}, "session_id must be an integer"),
      ("start_sample", {"session_id": 1, "index": 99}, "no index 99"),
      ("start_sample", {"session_id": 1, "index": "a"}, "invalid literal"),
      ("start_sample", first | {"custom_task": {}}, "takes no custom_task"),
      ("start_sample", first | {"split": "dev"}, "no split 'dev'"),
      ("interact", {"session_id": 99, "messages": says("hm")}, "no session 99"),
      ("interact", {"session_id": 7}, "must be a list"),
      ("interact", {"session_id": 7, "messages": []}, "assistant message"),
      ("interact", {"session_id": 7, "messages": [{}]}, "role '' is not one"),
      ("interact", {"session_id": 7, "messages": [7]}, "OpenAI's form"),
      ("interact", [], "must be a JSON object"),
      ("cancel", {"session_id": 99}, "no session 99"),
      ("sample_status", {"session_id": 99}, "no session 99"),
      ("calculate_overall", {"results": [{}]}, "needs a status and a reward"),
      (
        "calculate_overall",
        {"results": [{"status": "completed", "reward": 1.5e308}] * 2},
        "a reward that is a number: ValueError('1.5e+308",
      ),
      (
        "calculate_overall",
        {"results": [{"status": "completed", "reward": "x" * 70000}]},
        "x (str) is no number from",
      ),
      (
        "interact",
        {
          "session_id": 7,
          "messages": [{"role": "assistant", "content": {"text": "hm"}}],
        },
        "content must be a text",
      ),
    ):
      with self.subTest(path=path, body=body):
        status, answer = await self.post(path, body)
        self.assertEqual(status, 400)
        self.assertIn(words, answer["detail"])
    self.assertEqual((await self.interact("hm"))[0], 200)

  async def test_a_new_session_has_no_turn_of_one_with_its_id(self):
    await self.serve()
    for words in ("hm", "so"):
      await self.start(id=1)
      _, body = await self.post(
        "interact", {"session_id": 1, "messages": says(words), "turn": 1}
      )
      message = body["env_out"]["messages"][0]
      self.assertEqual(message["content"], f"You say {words}.")
      await self.post("cancel", {"session_id": 1})

  async def test_cancelling_frees(self):
    await self.serve()
    await self.start(id=1)
    await self.start(id=2)
    self.assertEqual(
      await self.post("cancel", {"session_id": 1}), (200, {"session_id": 1})
    )
    self.assertEqual(self.environment.num_open, 1)
    self.assertEqual((await self.post("cancel_all", {}))[0], 200)
    self.assertEqual(self.environment.num_open, 0)

  async def test_requests_as_agentrls_controller_writes_them(self):
    """Sends bodies without optional fields, or none where none is needed."""
    await self.serve()
    headers = {"Accept": "application/json"}
    typed = headers | {"Content-Type": "application/json"}
    for method, path, data, expected in (
      ("GET", "get_sessions", None, {}),
      ("POST", "start_sample", b'{"index":0,"session_id":3}', None),
      ("GET", "get_sessions", None, {"3": 0}),
      (
        "POST",
        "interact",
        b'{"messages":[{"role":"assistant","content":null,"tool_calls":[{"id":'
        b'"c","type":"function","function":{"name":"say","arguments":"{}"}}]}],'
        b'"session_id":3}',
        None,
      ),
      ("POST", "cancel_with_notice", b'{"session_id":3}', {"session_id": 3}),
      ("POST", "cancel_all", None, {}),
      ("POST", "cancel_all_with_notice", None, {}),
    ):
      with self.subTest(path=path, data=data):
        async with self.http.request(
          method,
          f"{self.url}/{path}",
          data=data,
          headers=headers if data is None else typed,
        ) as response:
          self.assertEqual(response.status, 200)
          body = await response.json()
          if expected is not None:
            self.assertEqual(body, expected)
    self.assertEqual(self.environment.num_open, 0)

  async def test_overall_result(self):
    await self.serve()
    results = [
      {"status": "completed", "reward": 1.0},
      {"status": "completed", "reward": 0.5},
      {"status": "task limit reached", "reward": 0},
    ]
    _, body = await self.post(
      "calculate_overall", {"name": "moody", "results": results}
    )
    self.assertEqual(
      body,
      {
        "total": 3,
        "reward": 0.5,
        "statuses": {"completed": 2, "task limit reached": 1},
      },
    )
