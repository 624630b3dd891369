"""Text and thoughts of a message, in the forms of all APIs that we know.

The policy reads text alone. `text_of` and `joined` are the one gate of what is
not: an image, a sound or a file is a `ContentFault` by its name, and is never
left out in silence. What that costs is up to the caller: a row of a data set,
an episode, or a client's call.
"""

import reprlib
from collections.abc import Mapping, Set
from typing import Any

# Types of parts that are text, and of those that are thoughts.
TEXTS = frozenset({"text", "input_text", "output_text", "refusal"})
THOUGHTS = frozenset(
  {
    "thinking",
    "redacted_thinking",
    "reasoning",
    "reasoning_text",
    "reasoning.text",
    "reasoning.summary",
    "reasoning.encrypted",
    "summary_text",
  }
)
# Fields of an answer that have its thoughts. Servers that write two of them
# write the same text twice.
THOUGHT_FIELDS = (
  "reasoning_content",
  "reasoning",
  "thinking",
  "reasoning_details",
  "thinking_blocks",
)
# Fields of a message, and columns of a row, that no text stands for.
MEDIA = ("image", "images", "audio", "audios", "video", "videos", "files")


class ContentFault(ValueError):
  """A message has something that is no text; the text says its type."""


def text_of(body: Mapping[str, Any]) -> str:
  """Returns the text of a message, without its thoughts.

  Raises `ContentFault` for what is no text, and TypeError for another form.
  """
  require_no_media(body)
  return joined(body.get("content"), TEXTS, THOUGHTS)


def require_no_media(body: Mapping[str, Any]) -> None:
  """Raises `ContentFault` for a message or a row with an image or the like."""
  if name := next(filter(body.get, MEDIA), ""):
    raise ContentFault(
      f"it has {name!r}, which is no text, and the policy reads text only"
    )


def thoughts_of(body: Mapping[str, Any]) -> dict[str, str]:
  """Returns the thoughts of an answer by the field that has them.

  The field is "content" if parts of it are thoughts. Fields with plain text
  stand for all others, which repeat it. Raises as `text_of` does.
  """
  texts = {
    name: joined(body.get(name), TEXTS | THOUGHTS).strip()
    for name in THOUGHT_FIELDS
  }
  if not isinstance(content := body.get("content"), str):
    texts["content"] = joined(content, THOUGHTS, TEXTS).strip()
  said = {name: text for name, text in texts.items() if text}
  plain = {n: text for n, text in said.items() if isinstance(body[n], str)}
  return plain or said


def joined(
  content: Any, kinds: Set[str], others: Set[str] = frozenset()
) -> str:
  """Joins a content: a text, null, or a list of texts and parts.

  Parts of the types `others` are left out. Raises `ContentFault` for a part
  that is of neither, and TypeError for another form.
  """
  if content is None or isinstance(content, str):
    return content or ""
  if not isinstance(content, list | tuple):
    raise TypeError(
      "content must be a text or a list of parts, found "
      f"{reprlib.repr(content)}"
    )
  texts = []
  for part in content:
    given = (
      {"text": part} if isinstance(part, str) else given_in(part, "a part")
    )
    untyped = "text" if [*given] == ["text"] else ", ".join(given)
    kind = str(given.get("type", untyped))
    if kind in kinds:
      names = (kind, "text", "summary")  # what is encrypted has none
      text = next((given[name] for name in names if name in given), "")
      texts.append(joined(text, TEXTS | THOUGHTS))
    elif kind not in others:
      raise ContentFault(
        f"a part of type {kind!r:.80} is no text, and the policy reads text "
        "only"
      )
  return "".join(texts)


def given_in(body: Any, what: str) -> dict[str, Any]:
  """Returns the members of a JSON object that are not null."""
  if not isinstance(body, Mapping):
    raise TypeError(f"{what} must be an object, found {reprlib.repr(body)}")
  return {name: value for name, value in body.items() if value is not None}
