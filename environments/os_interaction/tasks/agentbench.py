"""Reads AgentBench's OS tasks, which are not part of this project.

A script is text (bash), or an object with `language` and either `code` or the
name of a `file`. Files are searched in AgentBench's folders, or in `scripts`;
the programs of `judging.comparisons` are known by name and need no file.
"""

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from agentrl_jax.env.options import require_file
from agentrl_jax.errors import ConfigError
from environments.os_interaction.tasks.problem import (
  LANGUAGES,
  AnswerMatch,
  OSProblem,
  Script,
)


def load_problems(
  source: str | pathlib.Path, scripts: str = ""
) -> tuple[OSProblem, ...]:
  """Reads a `.json` file (a list of tasks, or one task) or a `.jsonl` file."""
  path = pathlib.Path(source)
  require_file(
    path,
    "OSInteraction's source",
    "one of AgentBench's task files, or none to generate tasks",
  )
  folders = _script_folders(path, scripts)
  text = path.read_text(encoding="utf-8")
  try:
    if path.suffix == ".jsonl":
      entries = [json.loads(line) for line in text.split("\n") if line.strip()]
    else:
      entries = json.loads(text)
    if isinstance(entries, Mapping):
      entries = [entries]
    return tuple(_problem(entry, folders) for entry in entries)
  except (LookupError, TypeError, ValueError) as error:
    raise ConfigError(
      f"{str(path)!r} does not hold OS tasks ({error!r}); each entry needs "
      "description and evaluation {match | check, example}"
    ) from error


def _script_folders(
  path: pathlib.Path, scripts: str
) -> tuple[pathlib.Path, ...]:
  """Lists the folders in which a script's file is searched, in order."""
  if scripts:
    folder = pathlib.Path(scripts)
    if not folder.is_dir():
      raise ConfigError(f"scripts={scripts!r} is not a folder")
    return (folder,)
  # data/dev.json has its scripts in scripts/dev, data/1/a.json in scripts/1.
  folder = path.resolve().parent
  return (
    folder,
    folder.parent / "scripts" / path.stem,
    folder.parent.parent / "scripts" / folder.name,
  )


def _problem(
  entry: Mapping[str, Any], folders: Sequence[pathlib.Path]
) -> OSProblem:
  # A few tasks have a list here; AgentBench plays them without init scripts.
  create = entry.get("create")
  create = create if isinstance(create, Mapping) else {}
  evaluation = entry["evaluation"]

  def read(script: object) -> Script:
    return _script(script, folders)

  example = evaluation.get("example")
  match = evaluation.get("match")
  return OSProblem(
    description=str(entry["description"]),
    image=str(create.get("local", "default")),
    init=tuple(map(read, _as_list(create.get("init")))),
    start=read(entry["start"]) if entry.get("start") is not None else None,
    match=None if match is None else _match(match),
    check=()
    if match is not None
    else tuple(
      None if script is None else read(script)
      for script in _as_list(evaluation["check"])
    ),
    example=None if example is None else read(example),
  )


def _as_list(value: Any) -> Sequence[Any]:
  if value is None:
    return ()
  return value if isinstance(value, list) else (value,)


def _match(rule: Any) -> AnswerMatch:
  if isinstance(rule, str):
    return AnswerMatch(answer=rule)
  answer, regex = rule.get("answer"), rule.get("regex")
  return AnswerMatch(
    answer=None if answer is None else str(answer),
    regex=None if regex is None else str(regex),
    strip=bool(rule.get("strip", True)),
  )


def _script(script: Any, folders: Sequence[pathlib.Path]) -> Script:
  if isinstance(script, str):
    return Script("bash", script)
  language = script.get("language", "bash")
  if language not in LANGUAGES:
    raise ValueError(
      f"language {language!r} is not one of {', '.join(LANGUAGES)}"
    )
  if "file" not in script:
    return Script(language, str(script["code"]))
  name = str(script["file"])
  for folder in folders:
    if (folder / name).is_file():
      code = (folder / name).read_text(encoding="utf-8")
      return Script(language, code, name)
  return Script(language, None, name)
