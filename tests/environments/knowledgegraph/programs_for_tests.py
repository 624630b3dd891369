"""Random small graphs and random programs on them, by hypothesis."""

from hypothesis import strategies as st

from environments.knowledgegraph.graph import Graph, Literal
from environments.knowledgegraph.program import (
  And,
  Count,
  Entity,
  Extreme,
  Join,
)

THINGS = tuple(f"m.0{letter}" for letter in "abcdef")
RELATIONS = ("a.b.to", "a.b.from", "c.d.of")
ATTRIBUTES = ("a.b.size", "a.b.born")
NUMBERS = tuple(Literal(str(n), "integer") for n in (2, 3, 10))
DATES = tuple(Literal(f"19{n}-01-02", "date") for n in (10, 20))
TEXTS = (Literal("yes", language="en"), Literal("ja", language="de"))


def facts():
  """A list of facts about few things, so that paths meet."""
  return st.lists(
    st.one_of(
      st.tuples(*map(st.sampled_from, (THINGS, RELATIONS, THINGS))),
      st.tuples(*map(st.sampled_from, (THINGS, ATTRIBUTES[:1], NUMBERS))),
      st.tuples(*map(st.sampled_from, (THINGS, ATTRIBUTES[1:], DATES))),
      st.tuples(*map(st.sampled_from, (THINGS, RELATIONS[:1], TEXTS))),
    ),
    min_size=4,
    max_size=40,
  ).map(Graph)


def entities():
  """Programs that are one thing."""
  return st.builds(Entity, st.sampled_from(THINGS))


def sets():
  """Programs that stand for a set of things."""
  start = st.builds(Join, st.sampled_from(RELATIONS), entities())
  return st.recursive(
    start,
    lambda inner: st.one_of(
      st.builds(Join, st.sampled_from(RELATIONS), inner),
      st.builds(And, inner, inner),
      st.builds(Extreme, inner, st.sampled_from(ATTRIBUTES), st.booleans()),
    ),
    max_leaves=4,
  )


def programs():
  """The same, or their number, as the calls can make them."""
  return st.one_of(
    sets(),
    st.builds(Count, sets()),
    st.builds(Count, st.builds(Count, sets())),
    st.builds(And, st.builds(Count, sets()), st.builds(Count, sets())),
  )
