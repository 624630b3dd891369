"""Real episodes of the real WebShop, and the part of its shop that they show.

The full shop has 1.18 million products. An episode shows a few: this reads them
off its pages, so that the same clicks can be played against our pages.
"""

import ast
import dataclasses
import gzip
import itertools
import json
import re
from collections.abc import Mapping

from agentrl_jax.data.messages import Message, message_from_json
from environments.webshop.shop.catalogue import Catalogue
from environments.webshop.shop.pages import SEPARATOR
from environments.webshop.shop.product import Goal, Product
from tests.environments.webshop import data

_PAGE = re.compile(
  r"(?:Action: (?P<action>.*?)\n\nObservation:|The initial observation:)"
  r"\n(?P<page>.*)\n\nAvailable Actions:\n(?P<actions>\{.*\})",
  re.DOTALL,
)
_RESULTS = re.compile(r"Page (\d+) \(Total results: (\d+)\)")


@dataclasses.dataclass(frozen=True)
class Episode:
  """What was said at first, and rounds of an answer and what it was told."""

  opening: tuple[Message, ...]
  rounds: tuple[tuple[Message, tuple[Message, ...]], ...]
  status: str
  is_whole: bool  # long episodes were logged with gaps, and end at the first


def load():
  """The episodes."""
  path = data.find("transcripts/webshop-std-qwen-8b.jsonl.gz")
  with gzip.open(path, "rt", encoding="utf-8") as lines:
    return [_make_episode(json.loads(line)["output"]) for line in lines]


def _make_episode(output):
  messages = [message_from_json(m) for m in output["result"]["messages"]]
  told, answers = [], []
  for is_answer, said in itertools.groupby(
    messages, lambda m: m.role == "assistant"
  ):
    if is_answer:
      calls = tuple(call for message in said for call in message.tool_calls)
      answers.append(Message("assistant", tool_calls=calls))
    else:
      told.append(tuple(said))
  opening, *rest = told
  rest += [()] * (len(answers) - len(rest))  # a purchase is not answered
  rounds = list(zip(answers, rest, strict=True))
  kept = list(itertools.takewhile(lambda r: _belong_together(*r), rounds))
  return Episode(
    opening,
    tuple(kept),
    status=output["status"],
    is_whole=len(kept) == len(rounds),
  )


def _belong_together(answer, told):
  """Whether `told` follows on `answer`, as far as its first line shows."""
  if not told:
    return answer.tool_calls[0].arguments == '{"value": "buy now"}'
  if told[0].content == "Task limit reached.":
    return False  # nobody knows after how many rounds
  if not answer.tool_calls:
    return len(told) == 1 and told[0].content.startswith(
      "Observation:\nNo exec"
    )
  call = answer.tool_calls[0]
  values = list(json.loads(call.arguments).values())
  if not values:
    return len(told) == 2
  action = f"{call.name.removesuffix('_action')}[{values[0]}]"
  return len(told) == 1 and told[0].content.startswith(f"Action: {action}\n")


class ShownShop:
  """The products and search results of one episode."""

  def __init__(self, episode):
    self.instruction = ""
    self._products: dict[str, dict] = {}
    self._found: dict[str, list[str]] = {}  # keywords -> ids, "" where unseen
    self._keywords = self._item = ""
    told = (message for _, told in episode.rounds for message in told)
    for message in itertools.chain(episode.opening, told):
      page = _PAGE.fullmatch(message.content)
      if message.role in ("user", "tool") and page:
        self._read(page["action"] or "", page["page"], page["actions"])

  def catalogue(self):
    """What was shown, found again by the same searches."""
    products = [_make_product(id, **p) for id, p in self._products.items()]
    return _ShownCatalogue(products, self._found)

  def _read(self, action, page, actions):
    texts = page.split(SEPARATOR)
    clickables = ast.literal_eval(actions)["clickables"]
    name, _, value = action.removesuffix("]").partition("[")
    results = next((m for t in texts if (m := _RESULTS.fullmatch(t))), None)
    if texts[0] == "WebShop":
      self.instruction = texts[2]
    elif results is not None:
      if name == "search":
        self._keywords = value.lower()
      self._read_results(texts, clickables, results)
    elif "Buy Now" in texts:
      if value.lower() in self._products:
        self._item = value.lower()
      self._read_item(texts, clickables)
    elif value.lower() in ("description", "features"):
      self._products[self._item][value.lower()] = texts[4:]

  def _read_results(self, texts, clickables, results):
    number, total = int(results[1]), int(results[2])
    found = self._found.setdefault(self._keywords, [""] * total)
    ids = [c for c in clickables if c not in _BUTTONS]
    shown = texts[texts.index("Next >") + 1 :]
    for i, id in enumerate(ids):
      found[10 * (number - 1) + i] = id
      product = self._products.setdefault(id, {})
      product["title"], product["tag"] = shown[3 * i + 1 : 3 * i + 3]

  def _read_item(self, texts, clickables):
    product = self._products[self._item]
    values = clickables[clickables.index("buy now") + 1 :]
    end = next(i for i, t in enumerate(texts) if t.startswith("Price: "))
    group, options = "", {}
    for text in texts[4 : end - 1]:
      if text in values:
        options[group].append(text)
      else:
        group = text
        options[group] = []
    product["options"] = options
    product["rating"] = texts[end + 1].removeprefix("Rating: ")


_BUTTONS = ("back to search", "next >", "< prev")


class _ShownCatalogue(Catalogue):
  def __init__(self, products, found: Mapping[str, list[str]]):
    super().__init__(products)
    self._found = found

  def search(self, keywords):
    return tuple(
      self.find(id) or _make_product("unseen", title="unseen", tag="$0.0")
      for id in self._found[keywords]
    )


def a_goal(instruction):
  """A goal with this text; what it asks for does not matter to the pages."""
  product = _make_product("b0", title="thing", tag="$1.0")
  return Goal(
    instruction=instruction,
    product=product,
    attributes=("useful",),
    options=(),
    price_upper=10.0,
  )


def _make_product(
  id, *, title, tag, options=None, rating="N.A.", description=(), features=()
):
  return Product(
    id=id.upper(),
    title=title,
    query="",
    department="",
    category="",
    attributes=(),
    options={name: tuple(vs) for name, vs in (options or {}).items()},
    price=1.0,
    price_tag=tag,
    description="".join(description),
    features=tuple(features),
    rating=rating,
  )
