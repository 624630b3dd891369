"""Questions of files: the contract, rewards, splits, and what is refused."""

import asyncio
import json
import pathlib
import tempfile
import threading
import time
import unittest

import pytest

from agentrl_jax.data.records import Message, Status, Task
from agentrl_jax.env.adapters import questions
from agentrl_jax.env.adapters.questions import Questions, exact_match
from agentrl_jax.env.contract import SessionContract
from agentrl_jax.errors import ConfigError, EnvironmentFault

HERE = "tests.env.adapters.questions_test"
TASK = Task("questions", "test", 0)


def rows_of(numbers):
  """Rows in GSM8K's form."""
  return [
    {"question": f"What is {n} + {n}?", "answer": f"{n}+{n}=\n#### {2 * n:,}"}
    for n in numbers
  ]


def write(path, rows):
  path.write_text("".join(json.dumps(row) + "\n" for row in rows))
  return path


def is_long(completion, words, *, least=1):
  return len(completion.split()) >= words * least


async def later(completion, **columns):
  await asyncio.sleep(0)
  return 1.5 if completion == columns["answer"] else 0


def broken(completion):
  return {"raise": lambda: 1 / 0, "exit": exit}.get(
    completion, lambda: float(completion)
  )()


def endless(completion):
  time.sleep(0.5)
  return 1.0


def hint(turn, answer):
  return f"Hint {turn}: {answer}" if turn < 3 else None


class QuestionsCase(unittest.IsolatedAsyncioTestCase):
  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

  def source(self, train=None, test=None):
    write(self.folder / "train.jsonl", train or rows_of(range(1, 9)))
    write(self.folder / "test.jsonl", test or rows_of(range(600, 608)))
    return str(self.folder)

  async def play(self, environment, *answers, task=TASK):
    async with environment.open(task, seed=0) as session:
      steps = [await session.reset()]
      for text in answers:
        steps.append(await session.step(Message("assistant", text)))
    return steps

  async def score(self, text, **options):
    environment = Questions(source=self.source(), **options)
    return (await self.play(environment, text))[-1]


class ContractTest(SessionContract, QuestionsCase):
  def make_environment(self):
    return Questions(source=self.source())


class SeveralTurnsContractTest(SessionContract, QuestionsCase):
  def make_environment(self):
    reward = f"{HERE}:later"  # in a thread
    return Questions(source=self.source(), max_turns=3, reward=reward)


class RewardTest(QuestionsCase):
  @pytest.mark.smoke
  async def test_the_last_number_counts(self):
    for text, reward in (
      ("600 and 600 make 1200.", 1.0),
      ("#### 1,200.00", 1.0),
      ("it is $1200, I think", 1.0),
      ("1.2e3", 1.0),
      ("1200 or 1201", 0.0),
      ("0-1200", 1.0),  # a subtraction, and no sign
      ("= -1200", 0.0),
      ("= \u22121200", 0.0),
      ("12001", 0.0),
      ("twelve hundred", 0.0),
      ("<think>1200", 0.0),  # not answered yet
      ("<think>7</think>1200", 1.0),
      (" ".join(map(str, range(1300))), 0.0),
    ):
      with self.subTest(text[:20]):
        step = await self.score(text)
        self.assertEqual((step.reward, step.status), (reward, Status.COMPLETED))
        self.assertEqual(step.metrics, {"success": reward})

  def test_exact_match(self):
    self.assertEqual(exact_match(" new\n York ", "New York"), 1.0)
    self.assertEqual(exact_match("York", "New York"), 0.0)
    self.assertEqual(exact_match("7", 7), 1.0)

  async def test_a_function_gets_what_it_names(self):
    rows = [row | {"words": 3} for row in rows_of(range(600, 602))]
    source = self.source(rows_of(range(3)), rows)
    with self.assertRaisesRegex(
      ConfigError, r"line 1: reward .*:is_long' asks for 'words', and the row"
    ):
      Questions(source=source, reward=f"{HERE}:is_long")
    source = f"train={self.folder}/test.jsonl,test={self.folder}/test.jsonl"
    with self.assertRaisesRegex(ConfigError, "leaves no question for train"):
      Questions(source=source, reward=f"{HERE}:is_long")
    write(self.folder / "train.jsonl", [r | {"words": 1} for r in rows_of([1])])
    source = str(self.folder)
    environment = Questions(source=source, reward=f"{HERE}:is_long", answer="")
    for text, reward in (("a b", 0.0), ("a b c", 1.0)):
      steps = await self.play(environment, text)
      self.assertEqual(steps[-1].reward, reward)

  async def test_a_reward_above_one_is_success(self):
    right = rows_of([600])[0]["answer"]
    step = await self.score(right, reward=f"{HERE}:later")
    self.assertEqual((step.reward, step.metrics["success"]), (1.5, 1.0))

  async def test_a_reward_that_breaks_costs_its_episode(self):
    for text in ("raise", "exit", "nan", "inf", "x"):
      with self.subTest(text), self.assertRaises(EnvironmentFault):
        await self.score(text, reward=f"{HERE}:broken")
    self.assertEqual(
      (await self.score("0.25", reward=f"{HERE}:broken")).reward, 0.25
    )

  async def test_a_reward_that_does_not_return_holds_up_nobody_else(self):
    before = threading.active_count()
    with self.assertRaisesRegex(EnvironmentFault, "step_limit_s"):
      await self.score("x", reward=f"{HERE}:endless", step_limit_s=0.05)
    await asyncio.sleep(0.6)
    self.assertEqual(threading.active_count(), before)

  async def test_several_turns(self):
    environment = Questions(source=self.source(), max_turns=3)
    first, wrong, right = await self.play(environment, "7", "1200")
    self.assertIn("600 + 600", first.messages[0].content)
    self.assertEqual(wrong.messages, (Message("user", questions.TRY_AGAIN),))
    self.assertIs(wrong.status, Status.RUNNING)
    self.assertEqual((right.reward, right.status), (1.0, Status.COMPLETED))
    steps = await self.play(environment, "7", "7", "7")
    self.assertEqual((steps[-1].reward, steps[-1].messages), (0.0, ()))
    environment = Questions(
      source=self.source(), max_turns=9, feedback=f"{HERE}:hint"
    )
    steps = await self.play(environment, "7", "7", "7")
    self.assertIn("Hint 2", steps[2].messages[0].content)
    self.assertIs(steps[3].status, Status.COMPLETED)


class PromptTest(QuestionsCase):
  async def first(self, **options):
    source = options.pop("source", None) or self.source()
    steps = await self.play(Questions(source=source, **options))
    return steps[0].messages

  async def test_prompt_and_system(self):
    messages = await self.first(
      prompt="Q: {question}\nEnd with \\boxed{}.", system="Be brief."
    )
    self.assertEqual(
      messages,
      (
        Message("system", "Be brief."),
        Message("user", "Q: What is 600 + 600?\nEnd with \\boxed{}."),
      ),
    )

  async def test_braces_of_a_question_are_text(self):
    rows = [{"question": "{answer} {x}", "answer": "1"}]
    messages = await self.first(source=self.source(rows_of([1]), rows))
    self.assertEqual(messages[0].content, "{answer} {x}")

  async def test_messages_and_a_dotted_answer(self):
    row = {
      "prompt": [{"role": "user", "content": "2+2?"}],
      "reward_model": {"ground_truth": "4"},
    }
    other = row | {"prompt": [{"role": "user", "content": "1+1?"}]}
    environment = Questions(
      source=self.source([row], [other]),
      question="prompt",
      answer="reward_model.ground_truth",
    )
    steps = await self.play(environment, "so 4")
    self.assertEqual(steps[0].messages[-1].content, "1+1?")
    self.assertEqual(steps[-1].reward, 1.0)


class SplitsTest(QuestionsCase):
  def asked(self, environment, split):
    rows = [
      environment.find(Task("q", split, n)) for n in environment.indices(split)
    ]
    return [row.columns["question"] for row in rows]

  def test_a_question_of_test_is_not_in_train(self):
    source = self.source(rows_of([1, 2, 600, 2]), rows_of([600, 601]))
    with self.assertLogs(questions.__name__) as logs:
      environment = Questions(source=source)
    self.assertIn("1 questions of train are in test", logs.output[0])
    asked = self.asked(environment, "train")
    self.assertEqual([text[8] for text in asked], ["1", "2", "2"])

  def test_one_file_is_divided_by_its_questions(self):
    rows = rows_of(range(200))
    path = write(self.folder / "all.jsonl", rows + rows[:50])
    environment = Questions(source=str(path))
    train, test = (self.asked(environment, s) for s in ("train", "test"))
    self.assertEqual(len(train) + len(test), 250)
    self.assertFalse(set(train) & set(test))
    self.assertTrue(8 < len(test) < 50, len(test))

  def test_files_of_a_folder_are_named_as_the_hub_does(self):
    self.source()
    for name in ("train-00000-of-00002", "train-00001-of-00002", "validation"):
      write(self.folder / f"{name}.jsonl", rows_of([len(name), 77]))
    (self.folder / "README.md").write_text("")
    # Beside GSM8K's own files stand these, with other columns.
    for name in ("train_socratic", "test_socratic", "example_model_solutions"):
      (self.folder / f"{name}.jsonl").write_text('{"ground_truth": 1}')
    environment = Questions(source=str(self.folder))
    self.assertEqual(
      dict(environment.splits()), {"test": 8, "train": 12, "validation": 2}
    )


class RefusedTest(QuestionsCase):
  def test_each_is_one_sentence(self):
    good = rows_of([1, 2])
    for train, options, sentence in (
      ([{}], {}, r"line 1: no value in the column 'question'; it has none;"),
      ([{"qestion": "a"}], {}, r"did you mean qestion\?.* it has qestion;"),
      ([good[0], good[1] | {"answer": None}], {}, r"line 2: .* 'answer'"),
      ([{"question": " ", "answer": "1"}], {}, "'question' is blank"),
      ([{"question": [1], "answer": "1"}], {}, "must be a text or a list"),
      (
        [
          {
            "question": [{"role": "user", "content": [{"type": "image"}]}],
            "answer": "1",
          }
        ],
        {},
        "type 'image' is no text",
      ),
      ([good[0] | {"images": ["a.png"]}], {}, "'images', which is no text"),
      ([{"question": [], "answer": "1"}], {}, "do not end with the user's"),
      ([{"question": 7, "answer": "1"}], {}, "must be a text or a list"),
      (good, {"reward": "last_nmber"}, "did you mean last_number"),
      (good, {"reward": "nowhere:f"}, "there is no module 'nowhere'"),
      (good, {"reward": f"{HERE}:is_logn"}, "did you mean is_long"),
      (good, {"reward": f"{HERE}:HERE"}, "has no function 'HERE'"),
      (good, {"feedback": "No."}, "max_turns=1: set both or none"),
      (good, {"feedback": "", "max_turns": 2}, "set both or none"),
      (good, {"max_turns": 0}, "max_turns"),
      (good, {"prompt": "{question} {hint}"}, r"asks for \{hint\}"),
      (good, {"prompt": r"\boxed{answer}"}, "shows the policy the answer"),
    ):
      with self.subTest(sentence):
        with self.assertRaisesRegex(ConfigError, sentence) as caught:
          Questions(source=self.source(train), **options)
        self.assertLess(len(str(caught.exception)), 400)

  def test_files(self):
    with self.assertRaisesRegex(ConfigError, "source is empty"):
      Questions(source="")
    (self.folder / "notes").mkdir()
    with self.assertRaisesRegex(ConfigError, "has no file .* it holds notes"):
      Questions(source=str(self.folder))
    self.source()
    (self.folder / "test.jsonl").write_text("\n")
    with self.assertRaisesRegex(ConfigError, "test.jsonl holds no row"):
      Questions(source=str(self.folder))
    (self.folder / "train.jsonl").write_text('{"question": "a"\n')
    with self.assertRaisesRegex(ConfigError, "train.jsonl, line 1: no JSON"):
      Questions(source=str(self.folder))
    with self.assertRaisesRegex(ConfigError, "none called train"):
      Questions(source=f"dev={self.folder}/train.jsonl,test=x.jsonl")
    with self.assertRaisesRegex(ConfigError, "x.jsonl cannot be read"):
      Questions(source="train=x.jsonl")
