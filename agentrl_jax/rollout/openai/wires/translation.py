"""Calls of other APIs as chats, and their replies piece by piece."""

import abc
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from agentrl_jax.rollout.openai.chat import ChatCall, Piece
from agentrl_jax.rollout.openai.choices import Choice, Delta
from agentrl_jax.rollout.openai.validation import (
  JsonObject,
  LenientObject,
  invalid,
  number_between,
  shortened,
  unread,
  unsupported,
)
from agentrl_jax.rollout.openai.wires.wire import Event, WireReply


class Part(LenientObject):
  """A part of a conversation, with the fields that its type needs."""

  needs: ClassVar[Mapping[str, Sequence[str]]]  # by the types that are read

  type: str

  @model_validator(mode="after")
  def _refuse_incomplete(self) -> "Part":
    if self.type not in self.needs:
      raise unsupported(
        f"it is of the type {shortened(self.type)}, and the policy reads "
        f"{', '.join(self.needs)}"
      )
    names = self.needs[self.type]
    if missing := [name for name in names if getattr(self, name) is None]:
      raise invalid(f"a {self.type} with {', '.join(missing)}")
    return self


class TranslatedCall(JsonObject):
  """Fields that the calls of other APIs share with each other and a chat."""

  model: str
  stream: bool = False
  temperature: Annotated[float, number_between(0.0, 2.0)] | None = None
  top_p: Annotated[float, number_between(1e-6, 1.0)] | None = None

  def to_chat(self) -> dict[str, Any]:
    """Returns the fields of the chat that the call stands for."""
    names = ("model", "stream", "temperature", "top_p")
    given = {name: getattr(self, name) for name in names}
    return given | {"not_read": [*unread(self)]}


class JsonFormat(LenientObject):
  """The form that a call wants of its answer."""

  without_effect = frozenset(("description", "strict"))
  type: Literal["text", "json_object", "json_schema"]
  name: str = "answer"
  definition: dict[str, Any] | None = Field(None, alias="schema")

  def to_chat(self) -> dict[str, Any]:
    """Returns the `response_format` of a chat."""
    if self.type != "json_schema":
      return {"type": self.type}
    schema = {"name": self.name, "schema": self.definition}
    return {"type": self.type, "json_schema": schema}


class TranslatedReply(WireReply):
  """Replies of other APIs: an answer's pieces, one after the other.

  A piece is opened, added to and closed, each by events of the API.
  """

  def __init__(self, call: ChatCall):
    self._call = call
    self._closed: list[Piece] = []
    self._open: Piece | None = None  # as far as it was sent
    self._has_begun = False

  @abc.abstractmethod
  def _first_event(self, choice: Choice) -> Event:
    """Returns the first event."""

  @abc.abstractmethod
  def _sign_of_growth(self) -> Event:
    """Returns an event that says nothing but that the answer grows."""

  @abc.abstractmethod
  def _opening(self, piece: Piece) -> Iterator[Event]:
    """Yields the events of a new piece."""

  @abc.abstractmethod
  def _addition(self, piece: Piece) -> Iterator[Event]:
    """Yields the events of what is added to the open piece."""

  @abc.abstractmethod
  def _closing(self, piece: Piece) -> Iterator[Event]:
    """Yields the events of a complete piece."""

  @abc.abstractmethod
  def _last_of(self, choice: Choice) -> Iterator[Event]:
    """Yields the events of the complete answer."""

  def events(self, choice: Choice, delta: Delta) -> Iterator[Event]:
    """See `WireReply`."""
    if not self._has_begun:
      self._has_begun = True
      yield self._first_event(choice)
    pieces = [*self._call.pieces(choice, delta)]
    if not pieces and not delta.is_last:
      yield self._sign_of_growth()
    for piece in pieces:
      yield from self._add(piece)
    if delta.is_last:
      yield from self._close()
      yield from self._last_of(choice)

  def last_events(self, choices: Sequence[Choice]) -> Iterator[Event]:
    """See `WireReply`."""
    yield from ()

  def _add(self, piece: Piece) -> Iterator[Event]:
    if self._open is None or self._open.kind != piece.kind or piece.call:
      yield from self._close()
      self._open = dataclasses.replace(piece, text="")
      yield from self._opening(self._open)
    text = self._open.text + piece.text
    self._open = dataclasses.replace(self._open, text=text)
    yield from self._addition(piece)

  def _close(self) -> Iterator[Event]:
    if self._open is not None:
      yield from self._closing(self._open)
      self._closed.append(self._open)
      self._open = None
