"""Any model behind OpenAI's chat API plays, and only its own faults count."""

import asyncio
import contextlib
import inspect
import json
import os
import pathlib
import re
import tempfile
import unittest
from unittest import mock

from absl.testing import parameterized
from aiohttp import web
from openai import _base_client

from agentrl_jax.controller.episode import EpisodeWaits
from agentrl_jax.controller.evaluation import evaluate
from agentrl_jax.controller.groups.group import RetryLimits
from agentrl_jax.data.chat.conversations import demonstration, read_conversation
from agentrl_jax.data.dataset_file import read_rows
from agentrl_jax.data.forms.content import THOUGHT_FIELDS
from agentrl_jax.data.records import (
  EpisodeSpec,
  Message,
  Status,
  Task,
  ToolCall,
)
from agentrl_jax.errors import ConfigError, GeneratorFault
from environments.arithmetic.environment import ADD, ANSWER, Arithmetic
from launch.comparisons.attempts import AttemptLog, ChatLog
from launch.serving.endpoint_player import ChatEndpoint, EndpointPlayer, history
from tests.data.chat import families

CODEC = families.codec_of(
  families.QWEN, (families.HERE / "qwen25.jinja").read_text()
)


def call(name, **arguments):
  return raw_call(json.dumps(arguments), name)


def raw_call(arguments, name="answer", id="1"):
  function = {"name": name, "arguments": arguments}
  return {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": id, "type": "function", "function": function}],
  }


THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "s"}


def refusal(status, message, **more):
  error = {"message": message, "code": status, **more}
  headers = {"x-should-retry": "false"} if "quota" in message else {}
  return web.json_response({"error": error}, status=status, headers=headers)


def solve(body):
  """A model that can add: it answers the question in one call."""
  text = body["messages"][0]["content"]
  a, b = map(int, re.search(r"What is (\d+) \+ (\d+)", text).groups())
  return call("answer", value=a + b)


class EndpointTestCase(unittest.IsolatedAsyncioTestCase):
  def setUp(self):
    self.enterContext(
      mock.patch.multiple(
        _base_client, INITIAL_RETRY_DELAY=0.001, MAX_RETRY_DELAY=0.001
      )
    )

  @contextlib.asynccontextmanager
  async def player(self, answer, *, timeout_s=5.0, **settings):
    """Serves `answer(body) -> message or response`; yields a player of it."""
    self.requests = []

    async def handle(request):
      body = await request.json()
      self.requests.append((body, dict(request.headers)))
      found = answer(body)
      if inspect.isawaitable(found):
        found = await found
      if isinstance(found, web.Response):
        return found
      return web.json_response({"choices": [{"message": found}]})

    application = web.Application()
    application.router.add_post("/v1/chat/completions", handle)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    try:
      yield EndpointPlayer(
        environments={"sums": Arithmetic()},
        max_turns=4,
        waits=EpisodeWaits(),
        endpoint=ChatEndpoint(
          url=f"http://127.0.0.1:{port}/v1",
          model="adder",
          answer_timeout_s=timeout_s,
          **settings,
        ),
      )
    finally:
      await runner.cleanup()

  async def play(self, answer, **settings):
    spec = EpisodeSpec(
      task=Task("sums", "test", 3), group_id="g", attempt=0, seed=2**40
    )
    async with self.player(answer, **settings) as player:
      return await player.play(spec)

  async def score(self, answer, *, num_tasks=2, concurrency=1, **settings):
    """Evaluates on tasks, of which a fault is retried once."""
    async with self.player(answer, **settings) as player:
      scores = await evaluate(
        player,
        [Task("sums", "test", n) for n in range(num_tasks)],
        concurrency=concurrency,
        seed=0,
        retries=RetryLimits(max_retries=1, backoff_s=0.0),
        timeout_s=60,
      )
      player.require_answers(scores)
      return scores["sums"]


class TeacherTest(EndpointTestCase):
  async def test_what_it_solved_is_a_demonstration(self):
    """Of two of three tasks: the third is answered wrongly."""

    def answer(body):
      if len(self.requests) == 3:
        return call("answer", value=-1)
      return solve(body)

    folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    chats = ChatLog(folder / "chats.jsonl", 1.0)
    log = AttemptLog(None, {}, chats)
    async with self.player(answer) as player:
      await evaluate(
        player,
        [Task("sums", "train", n) for n in range(3)],
        concurrency=1,
        seed=0,
        retries=RetryLimits(max_retries=0, backoff_s=0.0),
        timeout_s=60,
        progress=lambda done, number, played: log.add(played),
      )
    rows = [row.columns for row in read_rows(chats.path)]
    self.assertEqual([row["task"]["index"] for row in rows], [0, 1])
    for row in rows:
      conversation = read_conversation(row)
      self.assertEqual(conversation.tools, (ADD, ANSWER))
      (turn,) = demonstration(conversation, CODEC, room=1024).turns
      text = CODEC.decode(turn.sampled)
      sent = row["messages"][1]["tool_calls"][0]["function"]["arguments"]
      self.assertEqual(CODEC.read(turn.sampled).tool_calls[0].arguments, sent)
      self.assertTrue(text.endswith("<|im_end|>"), text)


class EndpointPlayerTest(EndpointTestCase):
  async def test_without_a_key_no_other_key_is_sent(self):
    with mock.patch.dict(os.environ, OPENAI_API_KEY="sk-of-somebody"):
      await self.play(solve)
    ((_, headers),) = self.requests
    self.assertNotIn("Authorization", headers)

  async def test_a_model_that_can_wins(self):
    played = await self.play(solve, key="secret", temperature=0.5)
    self.assertTrue(played.is_success)
    self.assertEqual(played.status, Status.COMPLETED)
    ((body, headers),) = self.requests
    self.assertEqual(headers["Authorization"], "Bearer secret")
    self.assertEqual((body["model"], body["temperature"]), ("adder", 0.5))
    self.assertEqual(
      [tool["function"]["name"] for tool in body["tools"]], ["add", "answer"]
    )
    self.assertLess(body["seed"], 2**31)

  async def test_a_model_that_cannot_loses_and_sees_what_was_said(self):
    played = await self.play(lambda body: {"content": "hm"})
    self.assertFalse(played.is_success)
    roles = [[m["role"] for m in body["messages"]] for body, _ in self.requests]
    self.assertEqual(roles[1][-2], "assistant")
    self.assertEqual(len(roles), 4)

  async def test_a_busy_endpoint_is_asked_again(self):
    def answer(body):
      if len(self.requests) < 3:
        return web.Response(
          status=429 if len(self.requests) == 1 else 524,
          headers={"Retry-After": "0"},
        )
      return solve(body)

    played = await self.play(answer)
    self.assertTrue(played.is_success)
    self.assertEqual(len(self.requests), 3)

  async def test_one_that_stays_busy_is_a_fault(self):
    with self.assertRaisesRegex(GeneratorFault, "gives no answer: HTTP 503"):
      await self.play(lambda body: web.Response(status=503), max_retries=2)
    self.assertEqual(len(self.requests), 3)

  async def test_one_that_does_not_answer_in_time_is_a_fault(self):
    async def wait(body):
      await asyncio.sleep(0.5)

    with self.assertRaisesRegex(GeneratorFault, "no answer within 0.1 s"):
      await self.play(wait, timeout_s=0.1)

  async def test_one_that_is_not_there_is_a_fault(self):
    async with self.player(solve, max_retries=0) as player:
      pass
    with self.assertRaisesRegex(GeneratorFault, "Connection error"):
      await player.play(
        EpisodeSpec(
          task=Task("sums", "test", 3), group_id="g", attempt=0, seed=0
        )
      )

  def test_settings_that_no_endpoint_has(self):
    for url in ("host:8000", "http://", "http://host:port", "ftp://host"):
      with self.assertRaisesRegex(ConfigError, "must be an address"):
        ChatEndpoint(url=url, model="x")
    with self.assertRaisesRegex(
      ConfigError, "must be one of max_tokens, max_c"
    ):
      ChatEndpoint(url="http://host", model="x", token_limit="tokens")


ODD = {
  "an error": {"error": {"message": "Provider returned error", "code": 502}},
  "an error beside choices": {
    "error": {"code": 502},
    "choices": [{"message": call("answer", value=0)}],
  },
  "an error in a choice": {
    "choices": [{"error": {"code": 502}, "message": {"content": "so f"}}]
  },
  "no choice": {"choices": []},
  "null choices": {"choices": None},
  "choices by name": {"choices": {"message": {}}},
  "null": None,
  "a list": [],
  "a number as message": {"choices": [{"message": 3}]},
  "a null message": {"choices": [{"message": None}]},
  "a delta": {"choices": [{"delta": {"content": "hm"}}]},
  "a completion": {"choices": [{"text": "hm"}]},
  "a call without arguments": {
    "choices": [
      {"message": {"tool_calls": [{"id": "1", "function": {"name": "answer"}}]}}
    ]
  },
  "a call without a name": {
    "choices": [{"message": raw_call("{}", name=None)}]
  },
  "a call without a function": {
    "choices": [{"message": {"tool_calls": [{"id": "1"}]}}]
  },
  "a call that is null": {"choices": [{"message": {"tool_calls": [None]}}]},
  "content that is a number": {"choices": [{"message": {"content": 3}}]},
  "an image": {"choices": [{"message": {"content": [{"type": "image"}]}}]},
  "images": {"choices": [{"message": {"content": "a", "images": ["b"]}}]},
  "parts that are numbers": {"choices": [{"message": {"content": [3]}}]},
}
TEXTS = {
  "html": "<html><body>Bad gateway</body></html>",
  "cut": '{"choices": [{"message": {"content": "h',
  "nothing": "",
  "a stream": 'data: {"choices": []}\n\ndata: [DONE]\n\n',
  "deep": "[" * 100_000,
}


class OddReplyTest(EndpointTestCase, parameterized.TestCase):
  """A reply in another form is a fault of the episode."""

  async def check(self, odd):
    with self.assertRaisesRegex(GeneratorFault, "not in the form of OpenAI's"):
      await self.play(lambda body: odd)
    self.assertLen(self.requests, 1)

  @parameterized.named_parameters(ODD.items())
  async def test_of_json(self, body):
    await self.check(web.json_response(body))

  @parameterized.named_parameters(TEXTS.items())
  async def test_of_text(self, text):
    await self.check(web.Response(text=text))

  async def test_an_endpoint_that_is_odd_for_all_ends_the_evaluation(self):
    with self.assertRaisesRegex(
      ConfigError, "none of 2 episodes.*<html>.*Check"
    ):
      await self.score(lambda body: web.Response(text="<html>"))

  async def test_an_empty_answer_is_the_policys(self):
    score = await self.score(lambda body: {"content": ""}, num_tasks=1)
    self.assertEqual(score.statuses, {"task_limit_reached": 1})
    self.assertLen(self.requests, 4)

  @parameterized.parameters(
    (None, "{}"),
    ({"value": 5}, '{"value": 5}'),
    ({}, "{}"),
    ("", ""),
    *((text, text) for text in ('{"value": 3', "{'value': 3}")),
  )
  async def test_arguments_that_are_no_text_are_read(self, sent, read):
    played = await self.play(lambda body: raw_call(sent))
    (said,) = played.transcript[1]["tool_calls"]
    self.assertEqual(said["function"]["arguments"], read)
    sent = [
      json.loads(each["function"]["arguments"])
      for message in self.requests[-1][0]["messages"]
      for each in message.get("tool_calls", ())
    ]
    self.assertTrue(all(isinstance(each, dict) for each in sent), sent)

  async def test_a_call_in_the_older_form_is_read(self):
    played = await self.play(
      lambda body: {"function_call": solve(body)["tool_calls"][0]["function"]}
    )
    self.assertTrue(played.is_success)

  async def test_half_a_surrogate_pair_is_sent_back_as_text(self):
    def answer(body):
      json.dumps(body, ensure_ascii=False).encode()  # as strict servers do
      return {"content": "\ud83d"} if len(self.requests) == 1 else solve(body)

    played = await self.play(answer)
    self.assertTrue(played.is_success)

  async def test_a_thought_that_used_up_the_tokens_is_the_policys(self):
    message = {"content": None, "reasoning_content": "I add."}
    choice = {"message": message, "finish_reason": "length"}
    played = await self.play(
      lambda body: web.json_response({"choices": [choice]})
    )
    self.assertEqual(played.status, Status.TASK_LIMIT_REACHED)
    self.assertLen(self.requests, 4)

  @parameterized.parameters(
    ({"content": [{"type": "text", "text": "a"}, {"text": "b"}]}, "ab"),
    ({"content": "ab", "reasoning_content": "hm"}, "ab"),
    ({"content": None, "refusal": "ab"}, "ab"),
    ({"content": "ab", "role": None, "tool_calls": None}, "ab"),
    (
      {"content": "ab", "reasoning": "hm", "reasoning_details": [THOUGHT]},
      "ab",
    ),
    ({"content": "ab", "thinking_blocks": [THOUGHT]}, "ab"),
    ({"content": [THOUGHT, "ab"]}, [THOUGHT, "ab"]),
  )
  async def test_legal_forms_are_read(self, message, content):
    """A thought is kept and goes back in the fields that the reply had."""
    played = await self.play(lambda body: message)
    self.assertLen(self.requests, 4)
    fields = {k: v for k, v in message.items() if k in THOUGHT_FIELDS}
    said = {"role": "assistant", "content": content, **fields}
    self.assertEqual(played.transcript[1], said)
    self.assertEqual(self.requests[-1][0]["messages"][1], said)
    row = read_conversation({"messages": played.transcript})
    wanted = "<think>\nhm\n</think>\n\nab" if "hm" in str(said) else "ab"
    self.assertEqual(row.messages[1].content, wanted)


class FullContextTest(EndpointTestCase, parameterized.TestCase):
  @parameterized.parameters(
    *((status, "Context size has been exceeded.") for status in (400, 413)),
    *((status, "Context size has been exceeded.") for status in (422,)),
    (400, "context_length_exceeded"),
  )
  async def test_ends_one_episode(self, status, said):
    score = await self.score(
      lambda body: (
        refusal(status, said) if len(self.requests) == 1 else solve(body)
      )
    )
    self.assertEqual(score.statuses, {"agent_context_limit": 1, "completed": 1})

  async def test_for_every_first_request_ends_the_evaluation(self):
    """A success of 0 % would be none of the model's, which was not asked."""
    full = "Context size has been exceeded."
    with self.assertRaisesRegex(ConfigError, f"none of 2 episodes.*{full}"):
      await self.score(lambda body: refusal(400, full))

  @parameterized.parameters(
    {"error": {"message": "Context size has been exceeded."}},
    {
      "choices": [
        {"message": {}, "finish_reason": "model_context_window_exceeded"}
      ]
    },
  )
  async def test_may_be_told_in_a_success(self, **body):
    played = await self.play(lambda _: web.json_response(body))
    self.assertEqual(played.status, Status.AGENT_CONTEXT_LIMIT)
    self.assertLen(self.requests, 1)


class RefusalTest(EndpointTestCase, parameterized.TestCase):
  @parameterized.parameters(
    (400, "model not found"),
    (400, "API key not valid"),
    (400, "Unsupported parameter: 'tools'"),
    (401, "no such key"),
    (403, "forbidden"),
    (404, "no such model"),
    (422, "extra fields not permitted"),
    (429, "insufficient_quota"),
  )
  async def test_of_the_first_request_ends_the_evaluation(self, status, said):
    with self.assertRaises(ExceptionGroup) as caught:
      await self.score(lambda body: refusal(status, said), num_tasks=9)
    (error,) = caught.exception.exceptions
    self.assertIsInstance(error, ConfigError)
    self.assertRegex(str(error), f"'adder': HTTP {status} .*{said[:9]}")
    self.assertLen(self.requests, 1)

  async def test_of_a_key_that_has_expired_ends_the_evaluation(self):
    with self.assertRaises(ExceptionGroup):
      await self.score(
        lambda body: (
          solve(body) if len(self.requests) == 1 else refusal(401, "expired")
        ),
        num_tasks=9,
      )
    self.assertLen(self.requests, 2)

  @parameterized.parameters(
    (
      "Unsupported value: 'temperature' does not support 0",
      "--noendpoint_temp",
    ),
    ("Unrecognized request argument supplied: seed", "--noendpoint_seed"),
    ("Unknown argument: max_tokens", "--endpoint_tokens=max_completion_tokens"),
  )
  async def test_names_the_flag_that_leaves_a_parameter_out(self, said, flag):
    with self.assertRaisesRegex(ConfigError, flag):
      await self.play(lambda body: refusal(400, said))

  @parameterized.parameters(400, 404, 422)
  async def test_of_one_task_costs_its_episode(self, status):
    """Of the second, which is tried again."""

    def answer(body):
      questions = [sent["messages"][0]["content"] for sent, _ in self.requests]
      if questions[-1] in questions[1:2]:
        return refusal(status, "not this one")
      return solve(body)

    score = await self.score(answer, num_tasks=3)
    self.assertEqual((score.num_tasks, score.num_lost), (2, 1))

  async def test_of_a_filter_costs_its_episode_though_it_is_the_first(self):
    score = await self.score(
      lambda body: (
        refusal(400, "hit", code="content_filter")
        if len(self.requests) <= 2
        else solve(body)
      )
    )
    self.assertEqual((score.num_tasks, score.num_lost), (1, 1))

  async def test_of_what_the_policy_wrote_is_the_policys_doing(self):
    for said in (
      raw_call('{"value": 3'),
      raw_call("{}", name="a b"),
      {"content": ""},
    ):
      with self.subTest(said):
        score = await self.score(
          lambda body, said=said: (
            refusal(400, "roles must alternate")
            if len(body["messages"]) > 1
            else said
          )
        )
        self.assertEqual(score.statuses, {"agent_validation_failed": 2})
        self.assertEqual(score.mean_reward, 0.0)


class ParametersTest(EndpointTestCase, parameterized.TestCase):
  async def test_parameters_can_be_left_out(self):
    await self.play(
      solve,
      temperature=None,
      sends_seed=False,
      token_limit="max_completion_tokens",
    )
    ((body, _),) = self.requests
    self.assertEqual(
      set(body), {"model", "messages", "tools", "max_completion_tokens"}
    )


class HistoryTest(EndpointTestCase, parameterized.TestCase):
  """Whatever the policy writes, servers accept the conversation."""

  def sent(self, arguments, name="go"):
    said = Message("assistant", tool_calls=(ToolCall(name, arguments, "c"),))
    _, answer, _ = history([Message("user", "Go."), said])
    return answer["tool_calls"][0]["function"]

  @parameterized.parameters(
    "{}", '{"x": 1.10}', ' {"x":"\u00e9"} ', '{"x": {"y": [1, null]}}'
  )
  def test_an_object_is_sent_as_it_was_written(self, text):
    self.assertEqual(self.sent(text)["arguments"], text)

  @parameterized.parameters(
    "",
    "{",
    '{"value": 3',
    "null",
    "[]",
    "7",
    '"text"',
    "{'x': 1}",
    '{"x": NaN}',
    '{"x": 1e999}',
    '{"x": "\\ud800"}',
    '{"x": ' + "9" * 30 + "}",
    "[" * 5000,
  )
  def test_other_arguments_are_sent_as_an_object_with_their_text(self, text):
    sent = json.loads(self.sent(text)["arguments"])
    self.assertEqual(sent, {"malformed_arguments": text})

  @parameterized.parameters(
    ("go", "go"),
    ("a b.c", "a_b_c"),
    ("", "_"),
    ("x" * 65, "x" * 64),
    ("\n", "_"),
  )
  def test_a_name_has_the_characters_of_a_name(self, name, sent):
    self.assertEqual(self.sent("{}", name)["name"], sent)

  def test_each_call_has_one_reply_before_all_else(self):
    calls = tuple(ToolCall("go", "{}", id) for id in "abc")
    sent = history(
      [
        Message("user", "Go."),
        Message("assistant", tool_calls=calls),
        Message("user", "Note."),
        Message("tool", "B", tool_call_id="b"),
        Message("tool", "lost", tool_call_id="z"),
        Message("tool", "B2", tool_call_id="b"),
        Message("assistant", "hm"),
        Message("tool", "late", tool_call_id="a"),
      ]
    )
    self.assertEqual(
      [(m["role"], m["content"], m.get("tool_call_id")) for m in sent],
      [
        ("user", "Go.", None),
        ("assistant", "", None),
        ("tool", "Not played.", "a"),
        ("tool", "B\nB2", "b"),
        ("tool", "Not played.", "c"),
        ("user", "Note.", None),
        ("user", "lost", None),
        ("assistant", "hm", None),
        ("user", "late", None),
      ],
    )

  @parameterized.parameters(None, "", 7, "1")
  async def test_calls_have_ids_of_their_own(self, id):
    def answer(body):
      calls = raw_call('{"a": 1, "b": 1}', "add", id)["tool_calls"]
      return {"tool_calls": calls * 2}

    await self.play(answer)
    last = self.requests[-1][0]["messages"]
    said = [call["id"] for m in last for call in m.get("tool_calls", ())]
    replied = [m["tool_call_id"] for m in last if m["role"] == "tool"]
    self.assertEqual(said, replied)
    for two in zip(said[::2], said[1::2], strict=True):
      self.assertLen(set(two), 2)
