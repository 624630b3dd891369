"""Reads real facts: FB15k-237, a part of Freebase, with AgentBench's ontology.

The files are not part of this project: FB15k-237.tar.gz (three files of
tab-separated triples) and entity2text.txt (names). Relations through nameless
nodes ("/a/b/c./d/e/f") are left out, because the data does not have the nodes.
Each other relation gets its reverse, as in Freebase.
"""

import pathlib
import tarfile
from collections.abc import Iterator

from agentrl_jax.env.options import require_file
from agentrl_jax.errors import ConfigError
from environments.knowledgegraph.engines.graph import Graph
from environments.knowledgegraph.generation.themes import Relation, WorldTheme
from environments.knowledgegraph.generation.world import World
from environments.knowledgegraph.problem import Ontology

ARCHIVE = "FB15k-237.tar.gz"
ENTITY_NAMES = "entity2text.txt"


def load_facts(path: str, entity_names: str, ontology: Ontology) -> World:
  """Reads FB15k-237; without a path, the names are those beside it."""
  archive = pathlib.Path(path)
  names_path = pathlib.Path(entity_names or archive.parent / ENTITY_NAMES)
  require_file(archive, "KnowledgeGraph's graph", ARCHIVE)
  require_file(names_path, "KnowledgeGraph's entity_names", ENTITY_NAMES)
  names = dict(_names(names_path))
  graph = Graph()
  for subject, relation, object_ in _triples(archive):
    if relation in ontology.relations and {subject, object_} <= names.keys():
      graph.add((subject, relation, object_))
      if relation in ontology.reverses:
        graph.add((object_, ontology.reverses[relation], subject))
  world = _world(graph, names, ontology)
  if not world.theme.relations:
    raise ConfigError(
      f"{path!r} holds no fact with a relation of the ontology between "
      f"entities that {str(names_path)!r} names"
    )
  return world


def _world(graph: Graph, names: dict[str, str], ontology: Ontology) -> World:
  """Groups the entities by type, and words the relations' phrases."""
  used = sorted({relation for _, relation, _ in graph})
  relations = tuple(
    _relation(name, ontology)
    for name in used
    if name in ontology.domains
    and ontology.reverses.get(name) in ontology.relations
  )
  ranges = {relation.name: relation.range for relation in relations}
  members: dict[str, dict[str, None]] = {}
  for _, name, object_ in graph:
    if name in ranges and isinstance(object_, str):
      members.setdefault(ranges[name], {})[object_] = None
  return World(
    WorldTheme(types=(), relations=relations, attributes=()),
    graph,
    names,
    {type_: list(ids) for type_, ids in members.items()},
  )


def _relation(name: str, ontology: Ontology) -> Relation:
  domain, range_ = ontology.domains[name], ontology.ranges[name]
  phrase = f"{_words(name)} of the {_words(domain)} {{}}"
  return Relation(name, domain, range_, phrase, ontology.reverses[name], 0)


def _words(name: str) -> str:
  """Reads the last part of a Freebase name as words: "place of birth"."""
  return name.rpartition(".")[2].replace("_", " ").strip()


def _triples(archive: pathlib.Path) -> Iterator[tuple[str, str, str]]:
  try:
    with tarfile.open(archive) as files:
      for member in files:
        content = files.extractfile(member)
        for line in content or ():
          subject, relation, object_ = line.decode().rstrip("\r\n").split("\t")
          if "./" not in relation:
            yield _id(subject), _id(relation), _id(object_)
  except (tarfile.TarError, ValueError) as error:
    raise ConfigError(
      f"{str(archive)!r} does not hold FB15k-237 ({error}): an archive of "
      "files with lines of subject, relation and object"
    ) from error


def _names(path: pathlib.Path) -> Iterator[tuple[str, str]]:
  for line in path.read_text(encoding="utf-8").split("\n"):
    id_, _, name = line.partition("\t")
    if name.strip():
      yield _id(id_), name.strip()


def _id(text: str) -> str:
  """Writes "/film/film/genre" as "film.film.genre"."""
  return text.strip("/").replace("/", ".")
