"""A folder's chat loads whole, or is refused by the name of a damaged file."""

import json
import pathlib

import pytest

from agentrl_jax.data.chat.pretrained import ChatConfig, load_chat
from agentrl_jax.errors import ConfigError
from agentrl_jax.rollout.api import MAX_STOPS
from tests.data.chat import families

FAMILY, SOURCE = families.templates()["small_qwen3"]
CONFIG = ChatConfig(date="2024-07-26", thinking=True)
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:01\nsize 7\n"
JSON_FILES = (
  "tokenizer.json",
  "tokenizer_config.json",
  "generation_config.json",
  "config.json",
)


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
  families.write_folder(tmp_path, FAMILY, SOURCE)
  return tmp_path


def refused(folder: pathlib.Path, message: str) -> None:
  with pytest.raises(ConfigError, match=message) as found:
    load_chat(folder, CONFIG)
  assert str(folder) in str(found.value)
  assert "\n" not in str(found.value)


def described(folder: pathlib.Path, **fields) -> None:
  path = folder / "tokenizer_config.json"
  path.write_text(json.dumps(json.loads(path.read_text()) | fields))


@pytest.mark.parametrize("name", [*JSON_FILES, "chat_template.jinja"])
@pytest.mark.parametrize(
  ("content", "message"),
  [
    (POINTER, "is a pointer of Git LFS"),
    (b"\xef\xbb\xbf{}", "begins with a byte order mark"),
    (b"{# \xe9 #}", "is not in UTF-8"),
  ],
)
def test_a_file_that_is_no_text(folder, name, content, message):
  (folder / name).write_bytes(content)
  refused(folder, f"/{name} {message}")


@pytest.mark.parametrize("name", JSON_FILES)
@pytest.mark.parametrize(
  "text",
  ["", '{"version": "1.0", "trunc', "[]", '{"a": "\\ud800"}', "[" * 9999],
)
def test_a_file_that_is_no_json_object(folder, name, text):
  (folder / name).write_text(text)
  refused(folder, f"/{name} (is not JSON|holds|is no tokenizer)")


@pytest.mark.parametrize("name", JSON_FILES)
def test_a_link_whose_file_was_never_fetched(folder, name):
  (folder / name).unlink(missing_ok=True)
  (folder / name).symlink_to(folder / "blobs" / "0123")
  refused(folder, f"/{name} cannot be read")


def test_a_tokenizer_at_which_the_library_panics(folder):
  path = folder / "tokenizer.json"
  body = json.loads(path.read_text())
  body["model"]["continuing_subword_prefix"] = "<unk>"
  path.write_text(json.dumps(body))
  refused(folder, "tokenizer.json is no tokenizer that can be read")


@pytest.mark.parametrize("name", ["generation_config.json", "config.json"])
@pytest.mark.parametrize(
  "eos",
  ['"301"', "-1", "1.0", "true", "[[290]]", "{}", "99999", "1" + "0" * 30],
)
def test_stop_tokens_that_are_none(folder, name, eos):
  (folder / name).write_text(f'{{"eos_token_id": {eos}}}')
  refused(folder, f"{name}: eos_token_id=.* must be the id of a token")


def test_stop_tokens_are_as_many_as_a_request_may_name(folder):
  path = folder / "generation_config.json"
  stops = [*range(MAX_STOPS)]
  path.write_text(json.dumps({"eos_token_id": stops}))
  refused(folder, f"may end with {MAX_STOPS + 1} tokens.* {MAX_STOPS} is the")
  path.write_text(json.dumps({"eos_token_id": stops[1:]}))
  assert len(load_chat(folder, CONFIG).stop_tokens) == MAX_STOPS


@pytest.mark.parametrize(
  ("fields", "message"),
  [
    ({"eos_token": {"special": True}}, "eos_token="),
    ({"bos_token": 5}, "bos_token=5 must be a token's text"),
    ({"pad_token": ["x"]}, "pad_token="),
    ({"chat_template": [{"template": SOURCE}]}, "chat_template="),
    ({"chat_template": [{"name": "default"}]}, "no chat_template|neither"),
    ({"chat_template": ["default"]}, "chat_template="),
    ({"chat_template": {"default": SOURCE}}, "chat_template="),
    ({"chat_template": "{% if %}"}, "no Jinja that can be read"),
    ({"chat_template": "{% for m in x %}" * 30 + "{% endfor %}" * 30}, "Jinja"),
    ({"chat_template": "{{ 1 / 0 }}" + SOURCE}, "division by zero"),
  ],
)
def test_a_tokenizer_config_with_other_values(folder, fields, message):
  described(folder, **fields)
  refused(folder, message)


def test_a_tokenizer_has_no_id_that_its_model_lacks(folder):
  path = folder / "tokenizer.json"
  size = load_chat(folder, CONFIG).vocab_size
  (folder / "config.json").write_text(json.dumps({"vocab_size": size}))
  (folder / "generation_config.json").unlink()
  load_chat(folder, CONFIG)
  body = json.loads(path.read_text())
  body["model"]["vocab"]["far"] = size + 99
  path.write_text(json.dumps(body))
  refused(folder, f"tokenizer.json has {size + 100} tokens.* it {size}")


def test_one_of_several_templates_is_taken_by_its_name(folder):
  other = {"name": "rag", "template": "{{ messages }}"}
  described(
    folder, chat_template=[other, {"name": "default", "template": SOURCE}]
  )
  assert load_chat(folder, CONFIG).stop_tokens
