"""Other requests are answered while a hostile one is processed."""

import asyncio
import functools
import json
import threading
import unittest
import unittest.mock

import openai
import pytest

from agentrl_jax.rollout.openai.models import ModelNames
from agentrl_jax.rollout.openai.routes import CallReader, OpenAIModel
from agentrl_jax.rollout.openai.schema import (
  ServingLimits,
  TextCompletionRequest,
)
from agentrl_jax.rollout.openai.validation import read
from tests import http_fuzz
from tests.clocks import until
from tests.rollout import talking


def schema_of(properties, required=()):
  return {
    "type": "object",
    "properties": properties,
    "required": [*required],
    "additionalProperties": False,
  }


def tool_of(**fields):
  function = {"name": "look", "parameters": {"type": "object"}} | fields
  return {"type": "function", "function": function}


def large(name):
  """A schema that takes a second to compile, which is as long as any may."""
  return schema_of(
    {
      f"{name}{n}": schema_of({f"{name}{n}_{k}": {} for k in range(480)})
      for n in range(10)
    }
  )


class HostileRequestsTest(unittest.IsolatedAsyncioTestCase):
  async def asyncSetUp(self):
    self.served = await self.enterAsyncContext(talking.Talking())
    self.http = await self.enterAsyncContext(http_fuzz.session())
    await self.ask_well()
    await self.form({"type": "integer"})  # what compiles is running

  async def ask_well(self):
    await self.served.openai.completions.create(
      model=talking.NAME, prompt="What is", max_tokens=1
    )

  def form(self, schema, client=None):
    described = {"name": "n", "schema": schema}
    return (client or self.served.openai).chat.completions.create(
      model=talking.NAME,
      messages=[{"role": "user", "content": "What?"}],
      response_format={"type": "json_schema", "json_schema": described},
      max_tokens=2,
    )

  @pytest.mark.slow
  async def test_other_calls_are_answered_during_a_hostile_one(self):
    hostile = asyncio.create_task(self.form(large("a")))
    await until(lambda: self.served.api.num_calls)
    async with self.http.get(f"{self.served.url}/ready") as response:
      self.assertEqual(response.status, 200)
    await self.ask_well()
    self.assertFalse(hostile.done())
    await hostile

  async def test_a_schema_that_takes_long_to_compile_is_refused(self):
    for schema, words in (
      ({"type": "integer", "multipleOf": 720720}, "multipleOf"),
      (schema_of({f"p{n}": {} for n in range(5000)}), "500 properties"),
    ):
      with self.assertRaisesRegex(openai.BadRequestError, words):
        await self.form(schema)

  @pytest.mark.slow
  async def test_one_that_hangs_up_leaves_its_form_to_others(self):
    """Both have one grammar, which is compiled once for both."""
    compiler = self.served.generator._compiler
    first = asyncio.create_task(self.form(large("b")))
    await until(lambda: compiler._waiting)
    other = asyncio.create_task(self.form(large("b")))
    first.cancel()
    await asyncio.wait([first])
    await other
    self.assertFalse(compiler._waiting)

  async def test_one_form_of_many_requests_is_compiled_once(self):
    compiler = self.served.generator._compiler
    compiler._max_waiting = 1
    grammars = compiler._grammars()
    checks = self.enterContext(
      unittest.mock.patch.object(grammars, "check", wraps=grammars.check)
    )
    form = {"type": "integer", "minimum": 3}
    await asyncio.gather(*(self.form(form) for _ in range(8)))
    self.assertEqual(checks.call_count, 1)

  @pytest.mark.slow
  async def test_more_forms_than_may_wait(self):
    compiler = self.served.generator._compiler
    compiler._max_waiting = 1
    hostile = asyncio.create_task(self.form(large("c")))
    await until(lambda: compiler._waiting)
    with self.assertRaisesRegex(openai.RateLimitError, "1 grammars wait"):
      await self.form({"type": "integer", "minimum": 4})
    await hostile

  @pytest.mark.slow
  async def test_a_prompt_is_refused_by_its_length(self):
    codec = talking.codec()
    encoded = []
    encode = codec._tokenizer.encode
    codec._tokenizer.encode = lambda text: encoded.append(text) or encode(text)
    self.addCleanup(delattr, codec._tokenizer, "encode")
    text = "hello world " * 540_000  # 6.5 MB
    told = [{"role": "user", "content": "What?"}]
    call = {"name": "look", "arguments": json.dumps({"at": text})}
    for ask in (
      self.served.openai.chat.completions.create(
        model=talking.NAME, messages=told, tools=[tool_of(description=text)]
      ),
      self.served.openai.chat.completions.create(
        model=talking.NAME,
        messages=told,
        tools=[tool_of(parameters={"description": text})],
      ),
      self.served.openai.chat.completions.create(
        model=talking.NAME,
        messages=[
          *told,
          {
            "role": "assistant",
            "tool_calls": [{"id": "1", "type": "function", "function": call}],
          },
          {"role": "tool", "tool_call_id": "1", "content": "seen"},
        ],
      ),
      self.served.openai.completions.create(
        model=talking.NAME, prompt=text, max_tokens=1
      ),
      self.served.openai.chat.completions.create(
        model=talking.NAME, messages=[{"role": "user", "content": text}]
      ),
      self.served.openai.chat.completions.create(
        model=talking.NAME, messages=[{"role": "assistant", "content": text}]
      ),
    ):
      with self.assertRaisesRegex(openai.BadRequestError, "bytes") as caught:
        await ask
      self.assertEqual(caught.exception.code, "context_length_exceeded")
    self.assertFalse(encoded)

  async def test_rendered_text_that_cannot_fit_is_not_tokenized(self):
    codec = talking.codec()
    encoded = []
    encode = codec._tokenizer.encode
    patched = unittest.mock.patch.object(
      codec._tokenizer,
      "encode",
      lambda text: encoded.append(len(text)) or encode(text),
    )
    most = talking.CONTEXT * codec.longest_token
    schema = {"type": "object", "properties": {"x" * most: {"type": "string"}}}
    with patched:
      for messages, tools in (
        ([{"role": "user", "content": "\u00b0" * (most // 2 - 1)}], []),
        ([{"role": "user", "content": "?"}], [tool_of(parameters=schema)]),
      ):
        with self.assertRaisesRegex(openai.BadRequestError, "tokens that fit"):
          await self.served.openai.chat.completions.create(
            model=talking.NAME, messages=messages, tools=tools or openai.omit
          )
    self.assertEqual(encoded, [])

  async def test_short_calls_wait_for_no_long_one(self):
    codec = talking.codec()
    goes_on = threading.Event()
    self.addCleanup(goes_on.set)
    encode = codec._tokenizer.encode

    def blocked(text):
      if len(text) > 1000:
        goes_on.wait()
      return encode(text)

    limits = ServingLimits(context=1 << 20)
    names = ModelNames(talking.NAME, lambda: self.served.status().policy_slots)
    model = OpenAIModel(names, limits, lambda: codec)
    reader = CallReader(limits.max_values)
    waiting = []

    async def call(text):
      prompt = {"model": talking.NAME, "prompt": text}
      body = json.dumps(prompt).encode()
      request = await reader.validate(
        body, functools.partial(read, TextCompletionRequest)
      )
      waiting.append(len(body))
      return await reader.tokenize(
        request, model, model.no_context, num_bytes=len(body)
      )

    with unittest.mock.patch.object(codec._tokenizer, "encode", blocked):
      long = [
        asyncio.create_task(call("hello world " * 10_000)) for _ in range(4)
      ]
      await until(lambda: waiting)
      for _ in range(4):
        self.assertEqual(len((await call("What is")).prompts), 1)
      self.assertFalse(any(task.done() for task in long))
      goes_on.set()
      for done in await asyncio.gather(*long):
        self.assertGreater(len(done.prompts[0]), 10_000)

  async def test_all_that_fits_is_taken(self):
    longest = max(
      (t for t in talking.tokenizer().get_vocab() if not t.startswith("<|")),
      key=len,
    ).replace("\u0120", " ")
    actual = await self.served.openai.completions.create(
      model=talking.NAME,
      prompt=longest * (talking.CONTEXT // len(longest)),
      max_tokens=1,
    )
    self.assertGreater(actual.usage.prompt_tokens, 0)
