"""Real facts: FB15k-237, a part of Freebase, with AgentBench's ontology.

The files are not part of this project: FB15k-237.tar.gz (three files of
tab-separated triples) and entity2text.txt (names). Relations through nameless
nodes ("/a/b/c./d/e/f") are left out, for the nodes themselves are not in the
data; of the others each gets its reverse, as in Freebase.
"""

import dataclasses
import pathlib
import tarfile
from collections.abc import Iterator

from agentrl_jax.errors import ConfigError
from environments.knowledgegraph.engines.graph import Graph
from environments.knowledgegraph.generation.schema import Relation, Theme
from environments.knowledgegraph.generation.world import World
from environments.knowledgegraph.ontology import Ontology

ARCHIVE = "FB15k-237.tar.gz"
ENTITY_NAMES = "entity2text.txt"


@dataclasses.dataclass(frozen=True)
class Facts:
  """The facts, as a world that can be asked about."""

  world: World
  ontology: Ontology


def load_facts(path: str, entity_names: str, ontology: Ontology) -> Facts:
  """Reads FB15k-237; the names stand beside it where no path is given."""
  archive = pathlib.Path(path)
  names_path = pathlib.Path(entity_names or archive.parent / ENTITY_NAMES)
  _require_file("graph", archive, ARCHIVE)
  _require_file("entity_names", names_path, ENTITY_NAMES)
  names = dict(_names(names_path))
  graph = Graph()
  for subject, relation, thing in _triples(archive):
    if relation in ontology.relations and {subject, thing} <= names.keys():
      graph.add((subject, relation, thing))
      if relation in ontology.reverses:
        graph.add((thing, ontology.reverses[relation], subject))
  world = _world(graph, names, ontology)
  if not world.theme.relations:
    raise ConfigError(
      f"{path!r} holds no fact of a relation that the ontology knows about "
      f"things that {str(names_path)!r} names"
    )
  return Facts(world, ontology)


def _require_file(option: str, path: pathlib.Path, wanted: str) -> None:
  if not path.is_file():
    raise ConfigError(
      f"KnowledgeGraph's {option} is {str(path)!r}, which is not a file; give "
      f"the path of {wanted}"
    )


def _world(graph: Graph, names: dict[str, str], ontology: Ontology) -> World:
  """The facts by type, and what their relations are called in words."""
  used = sorted({relation for _, relation, _ in graph})
  relations = tuple(
    _relation(name, ontology)
    for name in used
    if name in ontology.domains
    and ontology.reverses.get(name) in ontology.relations
  )
  ranges = {relation.name: relation.range for relation in relations}
  members: dict[str, dict[str, None]] = {}
  for _, name, thing in graph:
    if name in ranges and isinstance(thing, str):
      members.setdefault(ranges[name], {})[thing] = None
  return World(
    Theme(types=(), relations=relations, attributes=()),
    graph,
    names,
    {type_: list(things) for type_, things in members.items()},
  )


def _relation(name: str, ontology: Ontology) -> Relation:
  domain, range_ = ontology.domains[name], ontology.ranges[name]
  phrase = f"{_words(name)} of the {_words(domain)} {{}}"
  return Relation(name, domain, range_, phrase, ontology.reverses[name], 0)


def _words(name: str) -> str:
  """The last part of a name of Freebase: "place of birth"."""
  return name.rpartition(".")[2].replace("_", " ").strip()


def _triples(archive: pathlib.Path) -> Iterator[tuple[str, str, str]]:
  try:
    with tarfile.open(archive) as files:
      for member in files:
        content = files.extractfile(member)
        for line in content or ():
          subject, relation, thing = line.decode().rstrip("\r\n").split("\t")
          if "./" not in relation:
            yield _id(subject), _id(relation), _id(thing)
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
  """ "/film/film/genre" as "film.film.genre"."""
  return text.strip("/").replace("/", ".")
