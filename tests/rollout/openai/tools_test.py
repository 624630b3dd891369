"""Tools of every API, and the fate of every field that the APIs know."""

import json
import typing
import unittest

import pydantic
from openai.types import completion_create_params as texts
from openai.types.chat import completion_create_params as chats
from openai.types.responses import ResponseOutputItem, tool_param
from openai.types.responses import response_create_params as responses

from agentrl_jax.rollout.openai.schema import (
  ChatCompletionRequest,
  TextCompletionRequest,
)
from agentrl_jax.rollout.openai.tools import OfferedTool
from agentrl_jax.rollout.openai.wires.messages import MessagesRequest
from agentrl_jax.rollout.openai.wires.responses import ResponsesRequest
from tests.rollout import talking
from tests.rollout.openai.wires.messages_test import Messages

CITY = {"type": "object", "properties": {"city": {"type": "string"}}}
BASH = {"type": "bash_20250124", "name": "bash"}
EDITOR = {"type": "text_editor_20991231", "name": "edit"}
OLD = {"type": "text_editor_20241022", "name": "str_replace_editor"}
MEMORY = {"type": "memory_20250818", "name": "memory"}
WEATHER = {"name": "weather", "parameters": CITY}
GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": 'start: "x"'}
PATCH = {"type": "custom", "name": "patch", "format": GRAMMAR}
LATE = {"type": "function", "name": "late", "description": "Lately."}
LATE |= {"parameters": CITY, "defer_loading": True}
SEARCH = {"type": "tool_search", "execution": "client", "parameters": CITY}
NULLS = {"name": "f", "description": None, "parameters": None}
BARE = {"type": "function", "function": NULLS}
ANY = {"properties": {"a": None, "b": None}, "required": ["a"]}
OWN = [
  {"type": "namespace", "name": "team", "description": "", "tools": [PATCH]},
  {"type": "local_shell"},
  {"type": "shell"},
  {"type": "apply_patch"},
  SEARCH,
  LATE,
  {"type": "web_search"},
]


def call(name, **arguments):
  body = json.dumps({"name": name, "arguments": arguments})
  return f"<tool_call>{body}</tool_call><|end|>"


class ToolsTest(Messages):
  async def post_to(self, path, says="yes<|end|>", **body):
    """Returns the status, the body, and the text that the policy read."""
    self.policy.says, self.policy.prompts = [says], []
    if path != "responses":
      body = {"messages": [{"role": "user", "content": "Hi"}]} | body
    more = {"responses": {"input": "Hi"}, "messages": {"max_tokens": 99}}
    body = {"model": "tiny"} | more.get(path, {}) | body
    async with self.http.post(path, json=body) as response:
      got = await response.json()
    prompts = [talking.codec().decode(ids) for ids in self.policy.prompts]
    return response.status, got, "".join(prompts)

  async def test_every_form_is_shown_with_name_and_arguments(self):
    nested = {"type": "function", "function": WEATHER}
    of_anthropic = {"name": "weather", "input_schema": CITY}
    custom = {
      "name": "patch",
      "format": {"type": "grammar", "grammar": GRAMMAR},
    }
    for path, tool, shown in (
      ("messages", BASH, "bash(command?: string, restart?: boolean)"),
      ("messages", EDITOR, '"insert"]}, path: string, file_text?'),
      ("messages", OLD, "undo_edit"),
      ("messages", MEMORY, "old_path?: string, new_path?: string"),
      ("messages", nested, "weather(city?: string)"),
      ("messages", {"name": "weather", "inputSchema": CITY}, "weather(city"),
      ("chat/completions", of_anthropic, "weather(city"),
      ("chat/completions", {"type": "custom", "custom": custom}, 'start: \\"x'),
      ("chat/completions", BASH, "bash(command"),
      ("chat/completions", BARE, "f(): <|end|>"),
      ("chat/completions", {"name": "f", "parameters": ANY}, "f(a: any): <|"),
      ("responses", nested, "weather(city"),
      ("responses", {"type": "function"} | of_anthropic, "weather(city"),
      ("responses", PATCH, "patch(input: string)"),
      ("responses", {"type": "shell"}, "shell(commands: string[]"),
    ):
      status, got, text = await self.post_to(path, tools=[tool])
      self.assertEqual(status, 200, got)
      self.assertIn(shown, text)

  async def test_what_is_no_tool_here_is_refused_by_name(self):
    chosen = {"tools": [WEATHER], "tool_choice": {"type": "web_search"}}
    for path, body, named in (
      ("messages", {"tools": [{"type": "computer_20250124"}]}, "computer_2025"),
      ("messages", {"tools": [{"type": "mcp_toolset"}]}, "mcp_toolset"),
      ("messages", {"tools": [{"name": "weather"}]}, "input_schema"),
      ("messages", {"tools": [{"input_schema": CITY}]}, "name"),
      ("messages", {"tools": [WEATHER | {"input_schema": {}}]}, "one of"),
      ("responses", {"tools": [{"type": "mcp"}]}, "'mcp'"),
      ("responses", {"tools": [{"type": "file_search"}]}, "file_search"),
      ("responses", chosen, "web_search"),
      ("chat/completions", {"tools": [{"functionDeclarations": []}]}, "name"),
      (
        "chat/completions",
        {"tools": [{"name": "a", "params": CITY}]},
        "params",
      ),
      (
        "chat/completions",
        {"tools": [{"name": "a", "function": {"name": "b"}}]},
        "once",
      ),
      ("chat/completions", chosen | {"tool_choice": {"tools": 3}}, "choice"),
      *(
        ("chat/completions", {"tools": [{"name": "f"} | odd]}, named)
        for odd, named in (
          ({"parameters": 5}, "parameters=5"),
          ({"parameters": ["ab"]}, "parameters=['ab']"),
          ({"description": 5}, "description=5"),
          ({"parameters": {"required": "a"}}, "of tool 'f'"),
        )
      ),
    ):
      status, got, _ = await self.post_to(path, **body)
      self.assertEqual(status, 400, (body, got))
      self.assertIn(named, got["error"]["message"])

  async def test_custom_calls_of_a_chat_go_and_come_back(self):
    custom = {"name": "patch", "description": "Edits."}
    tools = [{"type": "custom", "custom": custom}]
    says, user = call("patch", input='a "b"'), {"role": "user", "content": "Hi"}
    choice = {"type": "custom", "custom": {"name": "patch"}}
    _, got, first = await self.post_to(
      "chat/completions", says, tools=tools, tool_choice=choice
    )
    answer = got["choices"][0]["message"]
    (sent,) = answer["tool_calls"]
    self.assertEqual(sent["custom"], {"name": "patch", "input": 'a "b"'})
    self.assertIn("patch", self.policy.specs[-1].grammar)
    reply = {"role": "tool", "tool_call_id": sent["id"], "content": "done"}
    history = [user, answer, reply]
    _, _, second = await self.post_to(
      "chat/completions", tools=tools, messages=history
    )
    self.assertTrue(second.startswith(f"{first}{says}"), second)

  async def test_items_of_openais_own_tools_go_and_come_back(self):
    says = [
      call("team.patch", input="x"),
      call("local_shell", command=["ls"]),
      call("shell", commands=["ls"], timeout_ms=1),
      call("apply_patch", type="create_file", path="a", diff="+a"),
      call("tool_search", city="x"),
      call("late", city="y"),
      "No.<|end|>",
    ]
    shell = {"stdout": "r3", "stderr": "", "outcome": {"type": "timeout"}}
    replies = [
      {"type": "custom_tool_call_output", "output": "r1"},
      {"type": "local_shell_call_output", "output": "r2"},
      {"type": "shell_call_output", "output": [shell]},
      {"type": "apply_patch_call_output", "status": "failed", "output": "r4"},
      {"type": "tool_search_output", "tools": [LATE]},
      {"type": "function_call_output", "output": "r6"},
    ]
    await self.serve(
      generator=self.policy,
      limits=dict(context=4096),
      rules=dict(max_tokens=4096, max_answer_tokens=400, max_turns=7),
    )
    for stream in (False, True):
      self.policy.says, self.policy.prompts = [*says], []
      playing, episode, client = await self.begin()
      items = [{"role": "user", "content": "Hi"}]
      fields = dict(model="tiny", input=items, tools=OWN)
      for reply in replies:
        got = await client.responses.create(stream=stream, **fields)
        if stream:
          events = [event async for event in got]
          got = events[-1].response
        item = got.output[0].to_dict()
        pydantic.TypeAdapter(ResponseOutputItem).validate_python(item)
        named = "id" if "local" in reply["type"] else "call_id"
        items += [item, reply | {named: item["call_id"]}]
        kinds = [event.type for event in events] if stream else []
        is_custom = item["type"] == "custom_tool_call"
        done = "response.custom_tool_call_input.done" in kinds
        self.assertEqual(done, stream and is_custom)
      await client.responses.create(**fields)
      self.check_record(await self.end(playing, episode), says)
      first, *_, found, last = map(talking.codec().decode, self.policy.prompts)
      self.assertNotIn("Lately.", first)
      self.assertIn("Lately.", found)
      for reply in ("r1", "r2", '"stdout": "r3"', "failed\nr4", "r6"):
        self.assertIn(reply, last)
    # A call that the tool's items cannot express stays text.
    bad = call("apply_patch", type="create_file", path="a")
    _, got, _ = await self.post_to("responses", bad, tools=OWN)
    self.assertEqual(got["output"][0]["type"], "message")

  async def test_a_tool_is_shown_by_the_result_that_refers_to_it(self):
    search = {"name": "ToolSearch", "input_schema": CITY}
    late = {"name": "late", "description": "Lately.", "input_schema": CITY}
    tools = [search, BASH, late | {"defer_loading": True}]
    says = [
      call("ToolSearch", city="x"),
      call("late"),
      call("bash"),
      "No<|end|>",
    ]
    self.policy.says = [*says]
    playing, episode, _ = await self.begin()
    client, said = self.claude(key=episode), [{"role": "user", "content": "Hi"}]
    reference = [{"type": "tool_reference", "tool_name": "late"}]
    for content in (reference, "r2", "r3", None):
      got = await self.create(client, said, tools=tools)
      result = {"type": "tool_result", "content": content}
      result["tool_use_id"] = getattr(got.content[0], "id", "")
      said += [{"role": "assistant", "content": got.content}]
      said += [{"role": "user", "content": [result]}]
    self.check_record(await self.end(playing, episode), says)
    first, second, *_ = map(talking.codec().decode, self.policy.prompts)
    self.assertNotIn("Lately.", first)
    self.assertIn("Lately.", second)
    # Nobody runs Anthropic's search, so what it would find is shown at once.
    hosted = {"type": "tool_search_tool_bm25_20251119", "name": "s"}
    _, _, text = await self.post_to("messages", tools=[hosted, *tools])
    self.assertIn("late(city?: string): Lately.", text)


class FatesTest(unittest.TestCase):
  def test_each_field_of_the_apis_is_read_counted_dropped_or_refused(self):
    from anthropic.types import beta, message_create_params

    for model, params in (
      (TextCompletionRequest, texts.CompletionCreateParamsBase),
      (ChatCompletionRequest, chats.CompletionCreateParamsBase),
      (ResponsesRequest, responses.ResponseCreateParamsBase),
      (MessagesRequest, message_create_params.MessageCreateParamsBase),
      (MessagesRequest, beta.message_create_params.MessageCreateParamsBase),
    ):
      tables = [model.without_effect, model.wishes, model.refused]
      for name in params.__annotations__:
        fates = sum(name in t for t in (model.model_fields, *tables))
        self.assertEqual(fates, 1, (model, name))

  def test_each_tool_of_the_apis_is_shown_left_out_or_refused(self):
    from anthropic.types import beta

    kinds = [
      typing.get_args(typing.get_args(hint)[0])[0]
      for tool in (
        *typing.get_args(tool_param.ToolParam),
        *typing.get_args(beta.BetaToolUnionParam)[1:],
      )
      if (hint := typing.get_type_hints(tool, include_extras=True)["type"])
    ]
    for kind in kinds:
      try:
        tool = OfferedTool.model_validate({"type": kind, "name": "n"})
      except pydantic.ValidationError as error:
        self.assertIn(kind, str(error))
        self.assertRegex(kind, "computer|browser|mcp|file_search")
      else:
        hosted = "search|fetch|code|image|advisor|programmatic|namespace"
        if not any(tool.functions()):
          self.assertRegex(kind, hosted)
