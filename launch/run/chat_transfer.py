"""Process 0's chat in every learner process, which has no files of the run.

A learner reads nothing and writes nothing, but where answers had to follow a
grammar it finds out what that allowed, and this takes the tokenizer.
"""

import io
import pathlib
import tempfile
import zipfile

from agentrl_jax.data.chat.codec import ChatCodec
from agentrl_jax.data.chat.pretrained import ChatConfig
from launch.config.chat import codec_of, files_of
from launch.processes.group import Processes


def share_chat(
  processes: Processes, run: pathlib.Path, config: ChatConfig
) -> ChatCodec:
  """How the policy of the run in process 0's folder reads and writes.

  All processes call it; the others wait for process 0.
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
