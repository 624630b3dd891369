"""Sessions reply as AgentBench does, on a real machine."""

import json

import pytest

from agentrl_jax.data.records import Message, Status, ToolCall
from environments.options import OSInteractionOptions
from environments.os_interaction.judging.judge import Judge
from environments.os_interaction.machines.shell import Shell
from environments.os_interaction.prompts import (
  BAD_CALL,
  CUT,
  NEEDS_ANSWER,
  NO_CALL,
  NO_OUTPUT,
  OUTPUT,
)
from environments.os_interaction.session import OSSession
from environments.os_interaction.tasks.problem import (
  AnswerMatch,
  OSProblem,
  Script,
)
from tests.environments.answers import call
from tests.environments.os_interaction.engines import InSandbox
from tests.environments.os_interaction.messages import answer, bash, finish

MATCH = OSProblem("What?", match=AnswerMatch("succeed"))
CHECK = OSProblem(
  "Do it.",
  check=(None, Script("bash", '[ "$1/$2" = "right/gold" ]')),
  example=Script("bash", "printf gold"),
)


@pytest.mark.docker
class RulesTest(InSandbox):
  async def asyncSetUp(self):
    self.started = await self.enterAsyncContext(self.machine())
    self.shell = await Shell.open(self.started, limit_s=10.0)
    self.addAsyncCleanup(self.shell.close)

  async def session(self, problem=MATCH, **rules):
    judge = await Judge.prepare(
      problem, self.started, self.machine, limit_s=30.0
    )
    return OSSession(problem, judge, self.shell, OSInteractionOptions(**rules))

  async def reply(self, message, problem=MATCH):
    step = await (await self.session(problem)).step(message)
    self.assertIs(step.status, Status.RUNNING)
    (reply,) = step.messages
    return reply.role, reply.content

  async def reward(self, problem, message, **rules):
    step = await (await self.session(problem, **rules)).step(message)
    self.assertIs(step.status, Status.COMPLETED)
    return step.reward

  async def test_opening(self):
    system, user = (await (await self.session()).reset()).messages
    self.assertTrue(
      system.content.startswith("You are an assistant that will act like a ")
    )
    self.assertEqual(system.content.count("\n"), 8)
    self.assertEqual(
      user.content,
      "Now, I will start a new problem in a new OS. My problem is:\n\nWhat?",
    )

  async def test_outputs(self):
    for script, expected in (
      ("echo hi", OUTPUT.format("hi\r\n")),
      ("true", NO_OUTPUT),
      ("printf %0800d", OUTPUT.format("0" * 800)),
      ("printf %0801d", OUTPUT.format("0" * 780 + CUT)),
      (7, NO_OUTPUT),
    ):
      with self.subTest(script=script):
        self.assertEqual(await self.reply(bash(script)), ("tool", expected))

  async def test_broken_calls(self):
    reply = await self.reply(Message("assistant", "Hm."))
    self.assertEqual(reply, ("user", NO_CALL))
    for name, arguments, text, expected in (
      ("no_such_tool", {"x": 1}, "", BAD_CALL),
      ("no_such_tool", {}, "", BAD_CALL),
      ("bash_action", {}, "", BAD_CALL),
      ("answer_action", {}, "", BAD_CALL),
      (
        "bash_action",
        "{",
        "",
        "Expecting property name enclosed in double quotes: "
        "line 1 column 2 (char 1)",
      ),
      ("bash_action", "[]", "", "'list' object has no attribute 'values'"),
      ("bash_action", "7", "", "argument of type 'int' is not iterable"),
      ("bash_action", "7", "Hm.", "'int' object has no attribute 'values'"),
      ("bash_action", '{"script": "\\ud800"}', "", BAD_CALL),
    ):
      with self.subTest(name=name, arguments=arguments, text=text):
        reply = await self.reply(call(name, arguments, text))
        self.assertEqual(reply, ("tool", expected))

  async def test_the_first_call_alone_is_played(self):
    calls = tuple(
      ToolCall("bash_action", json.dumps({"script": f"touch /tmp/{i}"}), str(i))
      for i in range(2)
    )
    await self.reply(Message("assistant", tool_calls=calls))
    _, listed = await self.reply(bash("ls /tmp"))
    self.assertEqual(listed, OUTPUT.format("0\r\n"))

  async def test_the_shell_lives_on(self):
    await self.reply(bash("cd /usr; x=7"))
    _, text = await self.reply(bash("echo $x; pwd"))
    self.assertEqual(text, OUTPUT.format("7\r\n/usr\r\n"))

  async def test_shell_begins_as_root_at_home(self):
    _, text = await self.reply(bash("whoami; pwd; echo $HOME $TERM"))
    self.assertEqual(text, OUTPUT.format("root\r\n/root\r\n/root xterm\r\n"))

  async def test_rounds_end(self):
    session = await self.session(max_rounds=2)
    await session.step(bash("true"))
    step = await session.step(bash("true"))
    self.assertEqual(
      (step.status, step.reward), (Status.TASK_LIMIT_REACHED, 0.0)
    )

  async def test_match(self):
    for rule, text, expected in (
      (AnswerMatch("succeed"), " succeed\n", 1.0),
      (AnswerMatch("succeed", strip=False), " succeed\n", 0.0),
      (AnswerMatch(regex="ee"), "succeed", 1.0),
      (AnswerMatch(regex="^ee"), "succeed", 0.0),
      (AnswerMatch("7"), 7, 0.0),
      (AnswerMatch("7"), "", 0.0),
    ):
      with self.subTest(rule=rule, text=text):
        problem = OSProblem("What?", match=rule)
        self.assertEqual(await self.reward(problem, answer(text)), expected)

  @pytest.mark.slow
  async def test_checks_get_the_answer_and_earlier_outputs(self):
    for text, expected in (("right", 1.0), ("wrong", 0.0), ("", 0.0)):
      self.assertEqual(await self.reward(CHECK, answer(text)), expected, text)

  @pytest.mark.slow
  async def test_scripts_of_all_languages(self):
    sources = {
      "python": "import sys; sys.exit(sys.argv[1] != 'ok')",
      "c": "#include <string.h>\nint main(int n, char **a) "
      '{ return strcmp(a[1], "ok"); }',
      "c++": "#include <string>\nint main(int n, char **a) "
      '{ return std::string(a[1]) != "ok"; }',
    }
    for language, code in sources.items():
      problem = OSProblem("Do it.", check=(Script(language, code),))
      for text, expected in (("ok", 1.0), ("no", 0.0)):
        with self.subTest(language=language, text=text):
          self.assertEqual(await self.reward(problem, answer(text)), expected)

  async def test_answers_that_no_program_can_take_are_wrong(self):
    problem = OSProblem("Do it.", check=(Script("bash", "true"),))
    long = json.dumps({"answer": "é" * 70_000}, ensure_ascii=False)
    for given in (answer("\0"), call("answer_action", long), answer("\ud800")):
      self.assertEqual(await self.reward(problem, given), 0.0)

  async def test_finishing_does_not_answer_a_match(self):
    thought = finish("succeed")
    self.assertEqual(await self.reply(thought), ("tool", NEEDS_ANSWER))
    self.assertEqual(
      await self.reward(MATCH, thought, upstream_quirks=True), 1.0
    )
    self.assertEqual(await self.reward(CHECK, finish("right")), 1.0)
