"""Records say what may be trained on, and refuse what does not fit."""

import dataclasses
import decimal
import fractions
import json
import reprlib

import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from agentrl_jax.data.forms.content import ContentFault
from agentrl_jax.data.records import (
  Group,
  Message,
  Status,
  Task,
  Tool,
  ToolCall,
  Trajectory,
  Turn,
  message_from_json,
  message_to_json,
  tool_from_json,
  unicode_json,
)
from agentrl_jax.data.split import split_of
from agentrl_jax.env.interface import Step
from agentrl_jax.errors import ConfigError, DeadlineExceeded, EnvironmentFault
from tests.data.records import make_trajectory, make_turn

RECORDS = {
  "step": Step(()),
  "trajectory": make_trajectory(np.random.default_rng(0)),
}
NUMBERS = {
  "int": 1,
  "bool": True,
  "float64": np.float64(1),
  "float32": np.float32(1),
  "int64": np.int64(1),
  "numpy's bool": np.bool_(True),
  "array": np.array(1.0),
  "array of jax": jnp.array(1.0),
  "bfloat16": jnp.bfloat16(1),
  "fraction": fractions.Fraction(3, 3),
  "decimal": decimal.Decimal("1.0"),
}
NOT_NUMBERS = {
  "nan": float("nan"),
  "inf": float("inf"),
  "beyond float32": -1e39,
  "nan of numpy": np.float32("nan"),
  "inf of jax": jnp.array(jnp.inf),
  "nan of decimal": decimal.Decimal("sNaN"),
  "huge int": 10**400,
  "int too long to print": 10**5000,
  "huge fraction": fractions.Fraction(10**400, 3),
  "complex": 1j,
  "text": "1.0",
  "text of numpy": np.array("1.0"),
  "bytes": b"1",
  "none": None,
  "array of one": np.ones(1),
  "list": [1.0],
}


class ScoredTest(parameterized.TestCase):
  """Rewards and metrics are finite floats, whichever record has them."""

  @parameterized.product(kind=tuple(RECORDS), given=tuple(NUMBERS))
  def test_numbers_become_floats(self, kind, given):
    number = NUMBERS[given]
    record = dataclasses.replace(
      RECORDS[kind], reward=number, metrics={"success": number}
    )
    self.assertEqual(
      [(type(x), x) for x in (record.reward, *record.metrics.values())],
      [(float, 1.0)] * 2,
    )

  @parameterized.product(kind=tuple(RECORDS), given=tuple(NOT_NUMBERS))
  def test_others_are_faults(self, kind, given):
    for name, field in (
      ("reward", NOT_NUMBERS[given]),
      (r"metrics\['x'\]", {"x": NOT_NUMBERS[given]}),
    ):
      with self.assertRaisesRegex(EnvironmentFault, f"^{name}=.*no number"):
        dataclasses.replace(RECORDS[kind], **{name.partition("\\")[0]: field})

  def test_rewards_of_turns_and_roles_are_checked_too(self):
    trajectory = RECORDS["trajectory"]
    with self.assertRaisesRegex(EnvironmentFault, r"role_rewards\['plan'\]"):
      dataclasses.replace(trajectory, role_rewards={"plan": np.nan})
    with self.assertRaisesRegex(EnvironmentFault, "reward=6"):
      dataclasses.replace(trajectory.turns[0], reward=3e38 - -3e38)

  def test_metrics_without_names_are_a_fault(self):
    with self.assertRaisesRegex(EnvironmentFault, "metrics=None is no mapping"):
      Step((), metrics=None)

  def test_a_status_is_one_of_ours(self):
    self.assertIs(Step((), status="completed").status, Status.COMPLETED)
    with self.assertRaisesRegex(EnvironmentFault, "status='won' is not one"):
      Step((), status="won")


class TrajectoryTest(absltest.TestCase):
  def test_whose_doing(self):
    ours = {s for s in Status if not s.is_policys_doing}
    self.assertEqual(
      ours,
      {Status.RUNNING, Status.TASK_ERROR, Status.CANCELLED, Status.UNKNOWN},
    )

  def test_full_reward_is_success_unless_the_environment_says(self):
    trajectory = make_trajectory(np.random.default_rng(0))
    for reward, metrics, expected in (
      (1.0, {}, True),
      (0.9, {}, False),
      (0.9, {"success": 1.0}, True),
      (1.0, {"success": 0.0}, False),
    ):
      changed = dataclasses.replace(trajectory, reward=reward, metrics=metrics)
      with self.subTest(reward=reward, metrics=metrics):
        self.assertEqual(changed.is_success, expected)

  def test_counts(self):
    trajectory = make_trajectory(np.random.default_rng(0), turns=3)
    sampled = [len(t.sampled) for t in trajectory.turns]
    self.assertEqual(trajectory.num_sampled, sum(sampled))
    self.assertEqual(
      trajectory.num_tokens,
      sum(sampled) + sum(len(t.observation) for t in trajectory.turns),
    )

  def test_staleness_is_that_of_policy_slot_0(self):
    rng = np.random.default_rng(0)
    turns = [
      dataclasses.replace(
        make_turn(rng, observed=1, sampled=2, version=version),
        policy_slot=policy_slot,
      )
      for version, policy_slot in ((9, 0), (2, 1), (7, 0))
    ]
    task = Task("a", "train", 0)

    def group(*turns):
      member = Trajectory(task, "g", 0, 0, turns, Status.COMPLETED, 1.0)
      return Group("g", task, (member,))

    self.assertEqual(group(*turns).oldest_version, 7)
    self.assertEqual(group(turns[1]).oldest_version, 2)
    self.assertEqual(group().oldest_version, -1)

  def test_turn_needs_one_entry_per_token(self):
    turn = make_turn(np.random.default_rng(0), observed=2, sampled=3)
    with self.assertRaisesRegex(ValueError, "one entry per sampled token"):
      Turn(
        turn.observation,
        turn.sampled,
        turn.behavior_logprob[:2],
        turn.raw_logprob,
        turn.version,
      )


class MessageTest(absltest.TestCase):
  def test_round_trip(self):
    for message in (
      Message("assistant", "x", (ToolCall("f", "{}", "1"),)),
      Message("tool", "y", tool_call_id="1"),
      Message("user", "z"),
    ):
      self.assertEqual(message_from_json(message_to_json(message)), message)

  def test_parts_and_null(self):
    thinking = {"type": "thinking", "thinking": "hm"}
    for parts, text in (
      ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "ab"),
      ([{"type": "input_text", "text": "a"}, "b", {"text": "c"}], "abc"),
      ([{"type": "output_text", "text": "a", "annotations": []}], "a"),
      ([{"type": "refusal", "refusal": "No."}, thinking], "No."),
      ([{"type": "text", "text": "a", "image_url": None}], "a"),  # Arrow's
      ([], ""),
    ):
      message = message_from_json({"role": "user", "content": parts})
      self.assertEqual(message.content, text)
    self.assertEqual(
      message_from_json({"role": "assistant", "content": None}).content, ""
    )
    for content in (5, True, {"text": "a"}, 0.5):
      with self.assertRaisesRegex(TypeError, "content must be a text"):
        message_from_json({"role": "user", "content": content})

  def test_what_is_no_text_is_refused_by_its_type(self):
    image = {"url": "data:,"}
    for body, kind in (
      ({"content": [{"type": "image_url", "image_url": image}]}, "image_url"),
      ({"content": ["What?", {"type": "image", "text": None}]}, "image"),
      ({"content": [{"type": "input_audio"}, "x"]}, "input_audio"),
      ({"content": [{"type": "tool_reference"}]}, "tool_reference"),
      ({"content": [{"image": "a.png", "text": "x"}]}, "image, text"),
      ({"content": [{}]}, ""),
      ({"content": "x", "images": ["a"]}, "images"),  # Ollama's
      ({"content": None, "audio": {"id": "a"}}, "audio"),
    ):
      with self.assertRaisesRegex(ContentFault, f"'{kind}'.* is no text"):
        message_from_json({"role": "user", **body})

  def test_unknown_role(self):
    with self.assertRaisesRegex(ValueError, "not one of system"):
      Message("robot")

  def test_other_calls_are_refused(self):
    for calls in ("abc", [{"name": "f"}], None, ToolCall("f", "{}")):
      with self.assertRaises(TypeError):
        Message("assistant", tool_calls=calls)

  def test_arguments_that_are_no_text_become_json(self):
    for arguments, wanted in (
      ('{"a":  1.10}', '{"a":  1.10}'),
      ({"value": 5, "why": None, "é": True}, None),
      ([1, "x"], None),
      (None, "{}"),
    ):
      function = {"name": "f", "arguments": arguments}
      body = {"role": "assistant", "tool_calls": [{"function": function}]}
      (call,) = message_from_json(body).tool_calls
      self.assertEqual((call.name, call.id), ("f", ""))
      if wanted is None:
        self.assertEqual(json.loads(call.arguments), arguments)
      else:
        self.assertEqual(call.arguments, wanted)

  def test_null_is_never_a_text(self):
    call = {"id": None, "function": {"name": "f", "arguments": "{}"}}
    body = {
      "role": "assistant",
      "content": [{"type": "text", "text": None}],
      "tool_calls": [call],
      "tool_call_id": None,
    }
    found = message_from_json(body)
    self.assertEqual(found, Message("assistant", "", (ToolCall("f", "{}"),)))

  def test_other_forms_are_refused(self):
    def calls(*found):
      return {"role": "assistant", "tool_calls": [*found]}

    for body in (
      None,
      "text",
      {"content": "x"},
      {"role": None},
      {"role": "user", "content": [5]},
      {"role": "user", "content": [{"text": 5}]},
      {"role": "tool", "content": "x", "tool_call_id": 5},
      {"role": "assistant", "tool_calls": 5},
      calls(None),
      calls("f"),
      calls({"function": "f"}),
      calls({"function": {"name": "f"}}),
      calls({"function": {"name": None, "arguments": "{}"}}),
      calls({"function": {"name": "f", "arguments": float("nan")}}),
      {"role": "user", "content": json.loads("[" * 900 + "]" * 900)},
    ):
      with (
        self.subTest(body=reprlib.repr(body)),
        self.assertRaises((TypeError, ValueError)),
      ):
        message_from_json(body)


HALVES = {  # text, and what it becomes
  "high": ("a\ud83db", "a\ufffdb"),
  "low": ("a\ude00", "a\ufffd"),
  "escaped_byte": ("caf\udce9.txt", "caf\ufffd.txt"),
  "two_high": ("\ud83d\ud83d", "\ufffd\ufffd"),
  "the_wrong_way": ("\ude00\ud83d", "\ufffd\ufffd"),
  "a_pair": ("\ud83d\ude00", "\U0001f600"),
  "whole": ("\ufeffé \U0001f600 \ufdd0", "\ufeffé \U0001f600 \ufdd0"),
}


class TextTest(parameterized.TestCase):
  """Half a surrogate pair becomes U+FFFD in every record that has text."""

  @parameterized.named_parameters((k, *v) for k, v in HALVES.items())
  def test_every_door(self, text, wanted):
    function = {"name": text, "description": text, "parameters": {}}
    message = {"role": "tool", "content": text, "tool_call_id": text}
    parts = {"role": "user", "content": [{"text": text}]}
    trajectory = make_trajectory(np.random.default_rng(0))
    for found in (
      Message("user", text).content,
      Message("tool", "", tool_call_id=text).tool_call_id,
      message_from_json(message).content,
      message_from_json(message).tool_call_id,
      message_from_json(parts).content,
      ToolCall(text, "").name,
      ToolCall("", text).arguments,
      ToolCall("", "", text).id,
      Tool(text, "", {}).name,
      Tool("f", text, {}).description,
      tool_from_json({"function": function}).name,
      Task(text, "train", 0).name,
      Task("a", text, 0).split,
      *Step((), metrics={text: 1.0}).metrics,
      dataclasses.replace(trajectory, fault=text).fault,
      *Tool("f", "", {"properties": {text: {}}}).parameters["properties"],
      *Tool("f", "", {"enum": [text]}).parameters["enum"],
      *unicode_json({text: [text]})[wanted],
      dataclasses.replace(Message("user"), content=text).content,
    ):
      self.assertEqual(found, wanted)

  @parameterized.parameters(EnvironmentFault, ConfigError, DeadlineExceeded)
  def test_reasons_of_errors(self, kind):
    self.assertEqual(str(kind("why \udce9")), "why \ufffd")
    self.assertEqual(kind(5, "é").args, (5, "é"))

  def test_other_values_are_no_text(self):
    for make in (
      lambda value: Message("user", value),
      lambda value: ToolCall(value, "{}"),
      lambda value: ToolCall("f", value),
      lambda value: Tool("f", value, {}),
      lambda value: Task(value, "train", 0),
    ):
      for value in (5, b"x", ["x"]):
        with self.assertRaisesRegex(TypeError, "must be a text, found"):
          make(value)


class ToolTest(parameterized.TestCase):
  @parameterized.named_parameters(
    ("nothing", {}, "", {}),
    ("null", {"description": None, "parameters": None}, "", {}),
    (
      "null_keywords",
      {"parameters": {"type": "object", "properties": None, "required": None}},
      "",
      {"type": "object"},
    ),
  )
  def test_null_is_not_given(self, fields, description, parameters):
    wanted = Tool("f", description, parameters)
    found = tool_from_json({"function": {"name": "f", **fields}})
    self.assertEqual(found, wanted)
    for name in ("input_schema", "inputSchema", "parameters"):
      bare = {"name": "f", name: fields.get("parameters"), "function": None}
      self.assertEqual(tool_from_json(bare), Tool("f", "", parameters))

  @parameterized.parameters(
    (None,),
    ("f",),
    ({"function": None},),
    ({"function": "f"},),
    ({"function": {}},),
    ({"function": {"name": None}},),
    ({"name": "web_search", "type": "web_search_20250305"},),
    ({"function": {"name": "f", "description": 5}},),
    ({"function": {"name": "f", "parameters": []}},),
    ({"function": {"name": "f", "parameters": "{}"}},),
    ({"function": {"name": "f", "parameters": {"properties": [1]}}},),
    ({"name": "f", "input_schema": [1]},),
  )
  def test_other_forms_are_refused(self, body):
    with self.assertRaises((TypeError, ValueError)):
      tool_from_json(body)

  def test_a_schema_that_cannot_be_shown_is_named(self):
    with self.assertRaisesRegex(EnvironmentFault, "tool 'f': .*found \\[1\\]"):
      Tool("f", "", [1])


class SplitTest(absltest.TestCase):
  def test_halves_the_texts_for_ever(self):
    sides = [split_of(f"text {n}") for n in range(2000)]
    self.assertBetween(sides.count("test"), 900, 1100)
    self.assertEqual(split_of("a fixed text"), "test")
