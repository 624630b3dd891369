"""Recorded episodes of upstream's WebShop, and the products that they show.

The full shop has 1.18 million products, and an episode shows a few. They are
parsed from its pages, so that the same actions can be replayed on our pages.
"""

import ast
import dataclasses
import gzip
import itertools
import json
import re
from collections.abc import Mapping

from agentrl_jax.data.records import Message, message_from_json
from environments.webshop.shop.catalogue import Catalogue
from environments.webshop.shop.product import Goal, Product
from tests.environments.shared_data import find

_PAGE = re.compile(
  r"(?:Action: (?P<action>.*?)\n\nObservation:|The initial observation:)"
  r"\n(?P<page>.*)\n\nAvailable Actions:\n(?P<actions>\{.*\})",
  re.DOTALL,
)
_RESULTS = re.compile(r"Page (\d+) \(Total results: (\d+)\)")


@dataclasses.dataclass(frozen=True)
class Episode:
  """The opening messages, and rounds of an answer and its reply."""

  opening: tuple[Message, ...]
  rounds: tuple[tuple[Message, tuple[Message, ...]], ...]
  status: str
  is_complete: (
    bool  # episodes that were logged with gaps stop before the first gap
  )


def load():
  """Returns the recorded episodes."""
  path = find("transcripts/webshop-std-qwen-8b.jsonl.gz")
  with gzip.open(path, "rt", encoding="utf-8") as lines:
    return [_make_episode(json.loads(line)["output"]) for line in lines]


def _make_episode(output):
  messages = [message_from_json(m) for m in output["result"]["messages"]]
  replies, answers = [], []
  for is_answer, group in itertools.groupby(
    messages, lambda m: m.role == "assistant"
  ):
    if is_answer:
      calls = tuple(call for message in group for call in message.tool_calls)
      answers.append(Message("assistant", tool_calls=calls))
    else:
      replies.append(tuple(group))
  opening, *rest = replies
  rest += [()] * (len(answers) - len(rest))  # a purchase has no reply
  rounds = list(zip(answers, rest, strict=True))
  kept = list(itertools.takewhile(lambda r: _is_reply(*r), rounds))
  return Episode(
    opening,
    tuple(kept),
    status=output["status"],
    is_complete=len(kept) == len(rounds),
  )


def _is_reply(answer, reply):
  """Tells by the first line if a reply belongs to an answer."""
  if not reply:
    return answer.tool_calls[0].arguments == '{"value": "buy now"}'
  if reply[0].content == "Task limit reached.":
    return False  # the limit is unknown
  if not answer.tool_calls:
    return len(reply) == 1 and reply[0].content.startswith(
      "Observation:\nNo exec"
    )
  call = answer.tool_calls[0]
  values = list(json.loads(call.arguments).values())
  if not values:
    return len(reply) == 2
  action = f"{call.name.removesuffix('_action')}[{values[0]}]"
  return len(reply) == 1 and reply[0].content.startswith(f"Action: {action}\n")


class ShownShop:
  """The products and search results of one episode."""

  def __init__(self, episode):
    self.instruction = ""
    self._products: dict[str, dict] = {}
    self._results: dict[str, list[str]] = {}  # keywords -> ids, "" if unseen
    self._keywords = self._item = ""
    replies = (message for _, reply in episode.rounds for message in reply)
    for message in itertools.chain(episode.opening, replies):
      page = _PAGE.fullmatch(message.content)
      if message.role in ("user", "tool") and page:
        self._read(page["action"] or "", page["page"], page["actions"])

  def catalogue(self):
    """Makes a catalogue with the recorded results of the same searches."""
    products = [_make_product(id, **p) for id, p in self._products.items()]
    return _ShownCatalogue(products, self._results)

  def _read(self, action, page, actions):
    texts = page.split(" [SEP] ")
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
    found_ids = self._results.setdefault(self._keywords, [""] * total)
    ids = [c for c in clickables if c not in _BUTTONS]
    shown = texts[texts.index("Next >") + 1 :]
    for i, id in enumerate(ids):
      found_ids[10 * (number - 1) + i] = id
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
  def __init__(self, products, results: Mapping[str, list[str]]):
    super().__init__(products)
    self._results = results

  def search(self, keywords):
    return tuple(
      self.find(id) or _make_product("unseen", title="unseen", tag="$0.0")
      for id in self._results[keywords]
    )


def a_goal(instruction):
  """Makes a goal with this text; pages do not depend on the rest of it."""
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
