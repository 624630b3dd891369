"""`/v1/responses` called with the real `openai` package."""

from tests.rollout import talking
from tests.rollout.openai.wires.messages_test import CALL, Messages

ADD = {
  "type": "function",
  "name": "add",
  "description": "Adds two integers.",
  "parameters": {
    "type": "object",
    "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
  },
}
TEAM = {
  "type": "namespace",
  "name": "team",
  "description": "Others.",
  "tools": [ADD | {"name": "ask"}],
}
ASKED = {"role": "user", "content": "What is 1 + 2?"}
ASK = CALL.replace('"add"', '"team.ask"')


class ResponsesTest(Messages):
  async def create(self, client, input, *, stream=False, **fields):
    fields = dict(model="tiny", input=input) | fields
    if not stream:
      return await client.responses.create(**fields)
    async with client.responses.stream(**fields) as stream:
      return await stream.get_final_response()

  async def test_items_come_whole_and_streamed_and_go_back(self):
    for stream in (False, True):
      for drops in (False, True):
        says = [ASK, CALL, "It is 3.<|end|>"]
        self.policy.says, self.policy.prompts = [*says], []
        playing = self.offer()
        _, episode = await self.post("episodes", wait_s=20)
        client = self.served.client(
          base_url=f"{self.served.url}/episodes/{episode['id']}/v1"
        )
        await self.enterAsyncContext(client)
        # The stream of the package knows no namespaces.
        tools = [ADD, TEAM]
        items = [ASKED]
        for name in ("ask", "add"):
          said = await self.create(
            client,
            items,
            instructions="Be short.",
            tools=tools,
            stream=stream,
            store=False,
            include=["reasoning.encrypted_content"],
          )
          thought, text, call = said.output
          self.assertEqual(
            (thought.content[0].text, text.content[0].text, call.name),
            ("Sum.", "Let me see.", name),
          )
          self.assertEqual(said.status, "completed")
          self.assertGreater(
            said.usage.output_tokens_details.reasoning_tokens, 3
          )
          output = {"type": "function_call_output", "call_id": call.call_id}
          items += [
            *([] if drops else [thought]),
            text,
            call,
            output | {"output": "3"},
          ]
        said = await self.create(
          client, items, instructions="Be short.", tools=tools, stream=stream
        )
        self.assertEqual(said.output_text, "It is 3.")
        played = await self.end(playing, episode["id"])
        self.check_record(played, says)

  async def test_text_is_streamed_as_it_comes(self):
    await self.serve()  # a real engine, and the seeds of an episode
    _, _, client = await self.begin()
    stream = await client.responses.create(
      model="tiny", input="What is 1 + 2?", max_output_tokens=4, stream=True
    )
    events = [event async for event in stream]
    kinds = [event.type for event in events]
    self.assertEqual(kinds[0], "response.created")
    self.assertGreater(kinds.count("response.output_text.delta"), 1)
    self.assertEqual(kinds[-1], "response.incomplete")
    numbers = [event.sequence_number for event in events]
    self.assertEqual(numbers, [*range(len(events))])
    response = events[-1].response
    self.assertEqual(response.incomplete_details.reason, "max_output_tokens")
    text = "".join(e.delta for e in events if e.type.endswith("text.delta"))
    self.assertEqual(response.output_text, text)
    again = await self.create(
      self.served.openai, "What is 1 + 2?", max_output_tokens=9999
    )
    self.assertLess(again.usage.output_tokens, talking.CONTEXT)

  async def test_structured_output_is_asked_for_in_its_own_words(self):
    self.policy.says = ['{"a": 1}<|end|>', CALL, "no<|end|>", CALL]
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    form = {"type": "json_schema", "name": "x", "schema": schema}
    client = self.served.openai
    said = await self.create(client, [ASKED], text={"format": form})
    self.assertEqual(said.output_text, '{"a": 1}')
    for choice in ("required", "none", {"type": "function", "name": "add"}):
      await self.create(client, [ASKED], tools=[ADD], tool_choice=choice)
    grammars = [bool(spec.grammar) for spec in self.policy.specs]
    self.assertEqual(grammars, [True, True, False, True])

  async def test_odd_bodies_are_refused_in_one_sentence(self):
    image = {"type": "input_image", "image_url": "data:"}
    for changes, named in (
      ({"input": []}, "input"),
      ({"input": None}, "input"),
      ({"input": [{"type": "item_reference", "id": "x"}]}, "item_reference"),
      ({"input": [{"type": "function_call", "name": "a"}]}, "call_id"),
      ({"input": [{"content": "x"}]}, "role"),
      ({"input": [{"role": "user", "content": [image]}]}, "input_image"),
      ({"previous_response_id": "resp_1"}, "keeps no responses"),
      ({"tools": "add"}, "tools"),
      ({"tool_choice": "add"}, "tool_choice"),
      ({"background": True}, "background"),
      ({"text": {"format": {"type": "xml"}}}, "format"),
      ({"truncation": "auto"}, "truncation"),
      ({"metdata": {}}, "metdata"),
    ):
      body = {"model": "tiny", "input": "Hello"} | changes
      async with self.http.post("responses", json=body) as response:
        error = (await response.json())["error"]
      self.assertEqual(response.status, 400, error)
      self.assertIn(named, error["message"])
