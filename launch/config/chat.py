"""The chat of a run: a small tokenizer of its own, or a pretrained model's.

The chat files of a pretrained model are copied into the run's folder at the
start, so that a resumed run reads the same text, wherever the model has moved.
"""

import dataclasses
import io
import pathlib
import tempfile
import zipfile

from agentrl_jax.data.chat.codec import ChatCodec
from agentrl_jax.data.chat.pretrained import (
  MODEL_CONFIG,
  ChatConfig,
  copy_chat,
  load_chat,
)
from agentrl_jax.data.chat.tokenizer import load_tokenizer
from agentrl_jax.errors import ConfigError
from launch.processes.group import Processes

_FOLDER, _OWN = "chat", "tokenizer.json"  # below the run's folder


def save_chat(run: pathlib.Path, pretrained: str, config: ChatConfig) -> None:
  """Copies a pretrained model's chat into the run, once."""
  if (run / _FOLDER).exists():
    return
  load_chat(pathlib.Path(pretrained), config)  # refuses what cannot be read
  copy_chat(pathlib.Path(pretrained), run / _FOLDER, config)


def codec_of(run: pathlib.Path, config: ChatConfig) -> ChatCodec:
  """Returns the chat codec of a run; `ConfigError` if it has none yet."""
  if (run / _FOLDER).exists():
    # The copy's own template is the one that `config.template` asked for.
    return load_chat(run / _FOLDER, dataclasses.replace(config, template=""))
  return ChatCodec(load_tokenizer(run / _OWN))


def require_same_vocabulary(run: pathlib.Path, teacher: str) -> None:
  """Raises `ConfigError` unless a teacher's tokens are the run's, one by one.

  `teacher` is a model's folder or that of a run; log-probabilities of a token
  under two policies can be compared if it is the same text for both.
  """
  own, other = _vocabulary(run), _vocabulary(pathlib.Path(teacher))
  if own == other:
    return
  ids = {id: text for text, id in own.items()}
  other_ids = {id: text for text, id in other.items()}
  differing = [
    id
    for id in ids.keys() | other_ids.keys()
    if ids.get(id) != other_ids.get(id)
  ]
  first = min(differing)
  raise ConfigError(
    f"reference.path={teacher} has another vocabulary than the policy: "
    f"{len(differing)} ids differ, the first is {first}, which is "
    f"{other_ids.get(first)!r:.80} there and {ids.get(first)!r:.80} here. Take "
    "a teacher of the same family, with the same tokenizer.json"
  )


def _vocabulary(folder: pathlib.Path) -> dict[str, int]:
  """Returns the id of each token of a run, or of a model's folder."""
  chat = folder / _FOLDER
  path = (chat if chat.exists() else folder) / _OWN
  if not path.exists():
    raise ConfigError(
      f"reference.path={folder} has no {_OWN}, by which its vocabulary could "
      "be compared with the policy's: copy it there from the same model"
    )
  return dict(load_tokenizer(path).get_vocab(with_added_tokens=True))


def files_of(run: pathlib.Path) -> list[pathlib.Path]:
  """Returns the files that `codec_of` reads, below the run's folder."""
  folder = run / _FOLDER
  return sorted(folder.iterdir()) if folder.exists() else [run / _OWN]


def chat_files_of(run: pathlib.Path) -> list[pathlib.Path]:
  """Returns those of `files_of` that an exported model is published with."""
  return [path for path in files_of(run) if path.name != MODEL_CONFIG]


def share_chat(
  processes: Processes, run: pathlib.Path, config: ChatConfig
) -> ChatCodec:
  """Returns, in every process, the chat codec of the run.

  A follower has no files of the run and writes none, but where a grammar
  constrained answers it needs the tokenizer to know which tokens were allowed.
  All processes call this; the others wait for process 0.
  """
  lends = processes.leads and processes.count > 1
  content = processes.share(_packed(run) if lends else b"", what="the chat")
  if processes.leads:
    return codec_of(run, config)
  with tempfile.TemporaryDirectory() as folder:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
      archive.extractall(folder)
    return codec_of(pathlib.Path(folder), config)


def _packed(run: pathlib.Path) -> bytes:
  content = io.BytesIO()
  with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
    for path in files_of(run):
      archive.write(path, path.relative_to(run))
  return content.getvalue()
