"""The chat of a run: a small tokenizer of its own, or a pretrained model's.

A pretrained model's files are copied into the run's folder when it starts, so
that a run reads the same when it goes on, wherever the model has moved.
"""

import pathlib

import ml_collections

from agentrl_jax.data.chat import ChatCodec
from agentrl_jax.data.pretrained_chat import ChatConfig, copy_chat, load_chat
from agentrl_jax.data.tokenizer import load_tokenizer
from agentrl_jax.errors import ConfigError
from agentrl_jax.train.config import require_read
from configs import base

_FOLDER, _OWN = "chat", "tokenizer.json"  # below the run's folder


def read_chat(config: ml_collections.ConfigDict) -> ChatConfig:
  """The `chat` section. Raises `ConfigError` where nothing would read it."""
  idle = base.get_config().chat.to_dict()
  for key, value in config.chat.to_dict().items():
    require_read(
      f"chat.{key}",
      value,
      idle=idle[key],
      is_read=bool(config.pretrained.path),
      why="without pretrained.path, whose model's chat template asks for it",
    )
  return ChatConfig(**config.chat.to_dict())


def save_chat(
  run: pathlib.Path, pretrained: str, config: ChatConfig, *, vocab_size: int
) -> None:
  """Copies a pretrained model's chat into the run, once, if it is of use.

  `vocab_size` is the model's. Raises `ConfigError` if the tokenizer has more.
  """
  if (run / _FOLDER).exists():
    return
  codec = load_chat(pathlib.Path(pretrained), config)
  if codec.vocab_size > vocab_size:
    raise ConfigError(
      f"the tokenizer in pretrained.path={pretrained} has {codec.vocab_size} "
      f"tokens, and its model knows {vocab_size}: the files are of two models"
    )
  copy_chat(pathlib.Path(pretrained), run / _FOLDER)


def codec_of(run: pathlib.Path, config: ChatConfig) -> ChatCodec:
  """How a run's policy reads and writes; `ConfigError` if nothing says."""
  if (run / _FOLDER).exists():
    return load_chat(run / _FOLDER, config)
  return ChatCodec(load_tokenizer(run / _OWN))


def files_of(run: pathlib.Path) -> list[pathlib.Path]:
  """What `codec_of` reads, which lies below the run's folder."""
  folder = run / _FOLDER
  return sorted(folder.iterdir()) if folder.exists() else [run / _OWN]
