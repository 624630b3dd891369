"""What is known about relations: where they lead, which are attributes.

Freebase's own is read from the four files that AgentBench ships; generated
worlds bring theirs.
"""

import dataclasses
import functools
import json
import pathlib
from collections.abc import Mapping

from agentrl_jax.errors import ConfigError

ROLES = "fb_roles"  # lines of "domain relation range"
REVERSES = "reverse_properties"  # lines of "relation<TAB>its reverse"
VOCABULARY = "vocab.json"  # lists "relations" and "attributes"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ontology:
  """The relations and attributes that a policy is told of."""

  ranges: Mapping[str, str]  # relation -> type of what it leads to
  relations: frozenset[str]
  attributes: frozenset[str]  # relations that lead to numbers and dates
  domains: Mapping[str, str] = dataclasses.field(default_factory=dict)
  reverses: Mapping[str, str] = dataclasses.field(default_factory=dict)

  @functools.cached_property
  def by_domain(self) -> Mapping[str, tuple[str, ...]]:
    """The relations and attributes of each type, in order of the alphabet."""
    found: dict[str, list[str]] = {}
    for relation in sorted(self.relations | self.attributes):
      if relation in self.domains:
        found.setdefault(self.domains[relation], []).append(relation)
    return {domain: tuple(names) for domain, names in found.items()}


def load_ontology(folder: str | pathlib.Path) -> Ontology:
  """Reads AgentBench's `ontology` folder."""
  folder = pathlib.Path(folder)
  missing = [
    name
    for name in (ROLES, REVERSES, VOCABULARY)
    if not (folder / name).is_file()
  ]
  if missing:
    raise ConfigError(
      f"KnowledgeGraph's ontology is {str(folder)!r}, where "
      f"{', '.join(missing)} cannot be found; give AgentBench's folder "
      "src/server/tasks/knowledgegraph/ontology"
    )
  try:
    vocabulary = json.loads((folder / VOCABULARY).read_text(encoding="utf-8"))
    roles = _lines(folder / ROLES, " ")
    return Ontology(
      ranges={relation: range_ for _, relation, range_, *_ in roles},
      domains={relation: domain for domain, relation, *_ in roles},
      relations=frozenset(vocabulary["relations"]),
      attributes=frozenset(vocabulary["attributes"]),
      reverses={f[0]: f[1] for f in _lines(folder / REVERSES, "\t")},
    )
  except (LookupError, TypeError, ValueError) as error:
    raise ConfigError(
      f"{str(folder)!r} does not hold AgentBench's ontology ({error!r})"
    ) from error


def _lines(path: pathlib.Path, separator: str) -> list[list[str]]:
  text = path.read_text(encoding="utf-8")
  return [line.split(separator) for line in text.split("\n") if line.strip()]
