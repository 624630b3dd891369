"""`/v1/messages` called with the real `anthropic` package.

It is imported where it is used: that takes seconds, which each process that
only collects the tests would spend, too.
"""

import json

import numpy as np

from agentrl_jax.errors import DeadlineExceeded
from tests.rollout import talking
from tests.rollout.openai.agents_playing import Playing

ADD = {
  "name": "add",
  "description": "Adds two integers.",
  "input_schema": {
    "type": "object",
    "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
  },
}
ASKED = {"role": "user", "content": "What is 1 + 2?"}
CALL = (
  "<think>Sum.</think>Let me see."
  '<tool_call>{"name": "add", "arguments": {"a":1.0, "b": 2}}</tool_call>'
  "<|end|>"
)


class Messages(Playing):
  async def asyncSetUp(self):
    self.policy = talking.Scripted()
    await self.serve(
      generator=self.policy,
      limits=dict(context=4096),
      rules=dict(max_tokens=4096, max_answer_tokens=400),
    )

  def claude(self, key="-", path=""):
    import anthropic

    client = anthropic.AsyncAnthropic(
      base_url=f"{self.served.url}{path}",
      api_key=key,
      max_retries=0,
      http_client=anthropic.DefaultAsyncHttpxClient(verify=False),
    )
    self.addAsyncCleanup(client.close)
    return client

  async def create(self, client, messages, *, stream=False, **fields):
    fields = dict(model="tiny", max_tokens=900, messages=messages) | fields
    if not stream:
      return await client.messages.create(**fields)
    async with client.messages.stream(**fields) as stream:
      return await stream.get_final_message()

  def check_record(self, played, says):
    """Checks that one line has the sampled tokens, turn by turn."""
    self.assertEqual(len(played.lines), 1)
    stream = []
    for turn, text, prompt in zip(
      played.turns, says, self.policy.prompts, strict=True
    ):
      sampled = talking.codec().encode(text)
      np.testing.assert_array_equal(turn.sampled, sampled)
      self.assertEqual(stream + turn.observation.tolist(), prompt)
      stream = prompt + sampled.tolist()


class MessagesTest(Messages):
  async def test_thoughts_text_and_calls_come_whole_and_streamed(self):
    for stream in (False, True):
      for key in ("id", "url"):
        says = [CALL, "<think>Done.</think>\n\nIt is 3.<|end|>"]
        self.policy.says, self.policy.prompts = [*says], []
        playing = self.offer()
        _, episode = await self.post("episodes", wait_s=20)
        client = (
          self.claude(key=episode["id"])
          if key == "id"
          else self.claude(path=f"/episodes/{episode['id']}")
        )
        fields = dict(tools=[ADD], system="Be short.", stream=stream)
        said = await self.create(client, [ASKED], **fields)
        thought, text, call = said.content
        self.assertEqual((thought.thinking, text.text), ("Sum.", "Let me see."))
        self.assertEqual((call.name, call.input), ("add", {"a": 1.0, "b": 2}))
        self.assertEqual(said.stop_reason, "tool_use")
        self.assertEqual(said.usage.input_tokens, len(self.policy.prompts[0]))
        self.assertGreater(said.usage.output_tokens, 40)
        # JavaScript writes 1.0 as 1, and some harnesses drop thoughts.
        call = json.loads(call.to_json()) | {"input": {"b": 2, "a": 1}}
        answer = [text, call] if key == "id" else [thought, text, call]
        result = {"type": "tool_result", "tool_use_id": call["id"]}
        parts = [{"type": "text", "text": "3"}]
        messages = [
          ASKED,
          {"role": "assistant", "content": answer},
          {"role": "user", "content": [result | {"content": parts}]},
        ]
        said = await self.create(client, messages, **fields)
        self.assertEqual(said.content[-1].text, "\n\nIt is 3.")
        self.assertEqual(said.stop_reason, "end_turn")
        played = await self.end(playing, episode["id"])
        self.check_record(played, says)
        self.assertIn("<think>Sum.", played.transcript[2]["content"])
        self.assertEqual(played.transcript[3]["role"], "tool")
    self.assertEqual(self.served.episodes.counts["dropping"], 2)

  async def test_text_is_streamed_as_it_comes_and_ends_as_anthropic_says(self):
    # A real engine, and the seeds of an episode.
    await self.serve(rules=dict(max_lines=2))
    self.offer()
    episode = await self.served.episodes.take(9)
    client = self.claude(episode.id)
    fields = dict(model="tiny", messages=[ASKED], max_tokens=9)
    kinds = [
      event.type
      async for event in await client.messages.create(stream=True, **fields)
    ]
    self.assertEqual(kinds[0], "message_start")
    self.assertGreater(kinds.count("content_block_delta"), 1)
    self.assertEqual(kinds[-2:], ["message_delta", "message_stop"])
    said = await client.messages.create(**fields)
    self.assertEqual(
      (said.stop_reason, said.usage.output_tokens), ("max_tokens", 9)
    )
    # More than fits is asked for by every harness.
    fields["max_tokens"] = 20000
    said = await self.claude().messages.create(**fields)
    self.assertLess(said.usage.output_tokens, talking.CONTEXT)

  async def test_other_endings_and_choices(self):
    client = self.claude()
    self.policy.says = ["one two three<|end|>", CALL, "text<|end|>"]
    said = await self.create(client, [ASKED], stop_sequences=["two"])
    self.assertEqual(
      (said.stop_reason, said.stop_sequence), ("stop_sequence", "two")
    )
    self.assertEqual(said.content[0].text, "one ")
    choice = {"type": "any", "disable_parallel_tool_use": True}
    await self.create(client, [ASKED], tools=[ADD], tool_choice=choice)
    self.assertIn("add", self.policy.specs[-1].grammar)
    said = await self.create(
      client, [ASKED], tools=[ADD], tool_choice={"type": "none"}
    )
    self.assertEqual(said.content[0].text, "text")

  async def test_a_call_that_has_no_object_stays_text(self):
    for arguments in ("[1]", '"1"', "3", '{"a": b}'):
      written = (
        f'<tool_call>{{"name": "add", "arguments": {arguments}}}</tool_call>'
      )
      self.policy.says = [f"{written}<|end|>"]
      said = await self.create(self.claude(), [ASKED], tools=[ADD])
      self.assertEqual([b.type for b in said.content], ["text"])
      self.assertEqual(said.content[0].text, written)

  async def test_what_only_anthropic_can_do_is_counted(self):
    self.policy.says = ["yes<|end|>"]
    search = {"type": "web_search_20250305", "name": "web_search"}
    said = await self.create(
      self.claude(),
      [ASKED],
      tools=[ADD, search, ADD | {"name": "later", "defer_loading": True}],
      system=[
        {"type": "text", "text": "x-anthropic-billing-header: cch=1;"},
        {"type": "text", "text": "Be short."},
      ],
      thinking={"type": "adaptive"},
      extra_body={"output_config": {"effort": "high"}},
      metadata={"user_id": "u"},
    )
    self.assertEqual(said.content[0].text, "yes")
    shown = talking.codec().decode(self.policy.prompts[0])
    self.assertIn("Be short.", shown)
    for hidden in ("billing", "web_search", "later"):
      self.assertNotIn(hidden, shown)
    async with self.http.get("/metrics") as response:
      page = await response.text()
    for name in ("thinking", "effort", "web_search_20250305"):
      self.assertIn(f'"{name}"', page)

  async def test_a_last_answer_of_the_client_is_gone_on_with(self):
    says = ["1}<|end|>", "Yes.<|end|>"]
    for stream in (False, True):
      self.policy.says, self.policy.prompts = [*says], []
      playing, episode, _ = await self.begin()
      begun = {"role": "assistant", "content": '{"a":'}
      body = {"model": "tiny", "max_tokens": 99, "messages": [ASKED, begun]}
      headers = {"x-api-key": episode}
      for _ in range(2):  # the second call repeats the first
        async with self.http.post(
          "messages", json=body | {"stream": stream}, headers=headers
        ) as response:
          text = await response.text()
        self.assertIn('"text": "1}"', text)
      whole = {"role": "assistant", "content": '{"a":1}'}
      await self.create(self.claude(episode), [ASKED, whole, ASKED])
      self.check_record(await self.end(playing, episode), says)

  async def test_tokens_are_counted_without_an_answer(self):
    client = self.claude()
    fields = dict(model="tiny", messages=[ASKED], tools=[ADD], system="Short.")
    counted = await client.messages.count_tokens(**fields)
    self.policy.says = ["yes<|end|>"]
    said = await client.messages.create(max_tokens=9, **fields)
    self.assertEqual(counted.input_tokens, said.usage.input_tokens)

  async def test_errors_have_anthropics_form(self):
    import anthropic

    client = self.claude()
    with self.assertRaises(anthropic.BadRequestError) as caught:
      await self.create(client, [{"role": "user", "content": "a" * 70000}])
    error = caught.exception.body["error"]
    self.assertEqual(error["code"], "context_length_exceeded")
    self.assertTrue(error["message"].startswith("prompt is too long"), error)
    with self.assertRaises(anthropic.NotFoundError) as caught:
      await self.create(client, [ASKED], model="claude")
    self.assertEqual(caught.exception.type, "not_found_error")
    with self.assertRaises(anthropic.NotFoundError):
      await self.create(self.claude(key="episode-1"), [ASKED])
    self.policy.says = []  # so that the generator fails while streaming
    image = {"type": "image", "source": {"type": "base64", "data": ""}}
    for changes, named in (
      ({"messages": []}, "messages"),
      ({"messages": [{"role": "tool", "content": "3"}]}, "messages[0].role"),
      ({"messages": [{"role": "user", "content": [image]}]}, "'image'"),
      (
        {"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]},
        "tool_use_id",
      ),
      ({"messages": [{"role": "user", "content": 3}]}, "content"),
      ({"max_tokens": None}, "max_tokens"),
      ({"max_tokens": 0}, "max_tokens"),
      ({"tools": [{"name": 3}]}, "tools[0].name"),
      ({"tools": [ADD | {"input_schema": {"properties": 3}}]}, "add"),
      ({"tools": [ADD], "tool_choice": {"type": "tool", "name": "sub"}}, "sub"),
      ({"tool_choice": "any"}, "tool_choice"),
      ({"temperature": 3}, "temperature"),
      ({"mcp_servers": [{}]}, "mcp_servers"),
      ({"system": [3]}, "system"),
    ):
      body = {"model": "tiny", "max_tokens": 9, "messages": [ASKED]} | changes
      async with self.http.post("messages", json=body) as response:
        error = await response.json()
      self.assertEqual((response.status, error["type"]), (400, "error"), error)
      self.assertEqual(error["error"]["type"], "invalid_request_error")
      self.assertIn(named, error["error"]["message"])

  async def test_an_error_within_a_stream_is_an_event_of_its_own(self):
    import anthropic

    self.policy.stream = self.broken
    client = self.claude()
    kinds = []
    with self.assertRaises(anthropic.APIStatusError) as caught:
      async for event in await client.messages.create(
        model="tiny", max_tokens=9, messages=[ASKED], stream=True
      ):
        kinds.append(event.type)
    self.assertEqual(kinds[:2], ["message_start", "content_block_start"])
    self.assertEqual(caught.exception.body["error"]["type"], "timeout_error")
    openai = self.served.openai
    stream = await openai.responses.create(
      model="tiny", input="Hello", stream=True
    )
    events = [event async for event in stream]
    self.assertEqual(events[-1].type, "response.failed")
    self.assertIn("too slow", events[-1].response.error.message)

  async def broken(self, prompt, spec):
    self.policy.says = ["one two"]
    yield await self.policy.generate(prompt, spec)
    raise DeadlineExceeded("the engine is too slow")


class HeldCallsTest(Messages):
  async def test_the_run_decides_where_a_call_leaves_open_if_tools_are_called(
    self,
  ):
    for calls in ("well_formed", "required"):
      await self.serve(
        generator=self.policy,
        limits=dict(context=4096),
        rules=dict(max_tokens=4096, max_lines=9, calls=calls),
      )
      self.offer()
      episode = await self.served.episodes.take(9)
      self.policy.says, self.policy.specs = [CALL, CALL, "a<|end|>"] * 2, []
      client = self.claude(key=episode.id)
      await self.create(client, [ASKED], tools=[ADD])
      aside = self.claude()
      await self.create(aside, [ASKED], tools=[ADD])
      none = {"type": "none"}
      await self.create(client, [ASKED], tools=[ADD], tool_choice=none)
      await self.create(client, [ASKED])
      grammars = [spec.grammar for spec in self.policy.specs]
      self.assertEqual([bool(g) for g in grammars], [True] + [False] * 3)
      self.assertIn(" call (", grammars[0])
      self.assertEqual("(TEXT" in grammars[0], calls == "well_formed")


class KeysTest(Messages):
  async def asyncSetUp(self):
    self.policy, self.token = talking.Scripted(), "a" * 32
    await self.serve(
      generator=self.policy, token=self.token, rules=dict(max_lines=2)
    )

  async def test_an_episodes_id_opens_its_calls_and_nothing_else(self):
    import anthropic

    self.offer()
    episode = await self.served.episodes.take(9)
    self.policy.says = ["yes<|end|>"] * 3
    await self.create(self.claude(key=self.token), [ASKED])
    self.assertEqual(episode.num_turns, 0)
    await self.create(self.claude(key=episode.id), [ASKED])
    self.assertEqual(episode.num_turns, 1)
    openai = self.served.client(api_key=episode.id)
    await self.enterAsyncContext(openai)
    other = {"role": "user", "content": "Go on."}
    await self.say(openai, [other])
    self.assertEqual((episode.num_turns, episode.num_lines), (2, 2))
    for key in ("b" * 32, "episode-1", "-"):
      with self.assertRaises(anthropic.AuthenticationError):
        await self.create(self.claude(key=key), [ASKED])
    for path in (f"episodes/{episode.id}", "episodes", "/generate"):
      head = {"x-api-key": episode.id}
      async with self.http.post(path, json={}, headers=head) as response:
        self.assertEqual(response.status, 401, path)
    path = f"/episodes/{episode.id}"
    with self.assertRaises(anthropic.AuthenticationError):
      await self.create(self.claude(path=path), [ASKED])
    with self.assertRaisesRegex(anthropic.BadRequestError, "several episodes"):
      await self.create(self.claude(episode.id, "/episodes/episode-2"), [ASKED])
