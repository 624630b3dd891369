"""Hypothesis strategies: small random graphs, and programs on them."""

import random

from hypothesis import strategies as st

from environments.knowledgegraph.engines.graph import Graph, Literal
from environments.knowledgegraph.engines.program import (
  And,
  Count,
  Entity,
  Extreme,
  Join,
)

ENTITIES = tuple(f"m.0{letter}" for letter in "abcde")
RELATIONS = ("a.b.to", "a.b.from")
ATTRIBUTES = ("a.b.size", "a.b.born")
NUMBERS = tuple(Literal(str(n), "integer") for n in (2, 3, 10))
DATES = tuple(Literal(f"19{n}-01-02", "date") for n in (10, 20))
TEXTS = (Literal("yes", language="en"), Literal("ja", language="de"))


def graphs():
  """Draws dense graphs of few entities, so that most programs have answers."""
  return st.integers(0, 2**32).map(_draw_graph)


def _draw_graph(seed):
  rng = random.Random(seed)
  graph = Graph()
  for _ in range(rng.randint(8, 30)):
    object_ = rng.choice([*ENTITIES, *ENTITIES, *TEXTS])
    graph.add((rng.choice(ENTITIES), rng.choice(RELATIONS), object_))
  for _ in range(rng.randint(2, 10)):
    subject = rng.choice(ENTITIES)
    graph.add((subject, ATTRIBUTES[0], rng.choice(NUMBERS)))
    graph.add((subject, ATTRIBUTES[1], rng.choice(DATES)))
  return graph


def entities():
  """Programs that are one entity."""
  return st.builds(Entity, st.sampled_from(ENTITIES))


def sets():
  """Programs that are a set of entities."""
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
  """All programs that the tools can make."""
  return st.one_of(
    sets(),
    st.builds(Count, sets()),
    st.builds(Count, st.builds(Count, sets())),
    st.builds(And, st.builds(Count, sets()), st.builds(Count, sets())),
  )
