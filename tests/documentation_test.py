"""Links, commands, files and config keys of the pages exist."""

import contextlib
import pathlib
import re
import shlex

import pytest

from configs import finetune, quickstart, smollm2
from configs.base import why_unknown
from launch.config.command_line import load_config
from tests.launch.command_lines import outcomes

ROOT = pathlib.Path(__file__).parents[1]
PAGES = sorted(
  path
  for pattern in (
    "*.md",
    "docs/*.md",
    "bench/*.md",
    "studies/**/*.md",
    "environments/*/*.md",
  )
  for path in ROOT.glob(pattern)
)
# Files that a reader makes.
EXAMPLES = {"configs/ablations/X.py", "configs/ablations/mine.py"}
FOLDERS = (
  "agentrl_jax",
  "bench",
  "configs",
  "environments",
  "launch",
  "studies",
  "tests",
)
OF_LLGUIDANCE = ("docs/json_schema.md", "docs/syntax.md")
FILE_ENDINGS = (".csv", ".html", ".json", ".jsonl", ".py", ".safetensors")
LINK = re.compile(r"\]\(([^)\s]+)\)")


def anchors(path: pathlib.Path) -> set[str]:
  """The anchors of a page's headings, as GitHub makes them."""
  page = path / "README.md" if path.is_dir() else path
  text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
  headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
  return {
    re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
    for heading in headings
  }


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_of_a_page_exist(page):
  for link in LINK.findall(page.read_text()):
    if "://" in link:
      continue
    name, _, anchor = link.partition("#")
    target = page.parent / name if name else page
    assert target.exists(), link
    if anchor:
      assert anchor in anchors(target), link


def test_paths_of_the_architecture_page_exist():
  page = (ROOT / "docs" / "architecture.md").read_text()
  prose = re.sub(r"```.*?```", "", page, flags=re.DOTALL)
  places = re.findall(r"`((?:\w+/)+(?:\w+(?:\.\w+)?)?)`", prose)
  assert len(places) > 60
  missing = [
    place
    for place in places
    if not any(
      (root / f"{place}{ending}").exists()
      for root in (ROOT, ROOT / "agentrl_jax")
      for ending in ("", ".py")
    )
  ]
  assert not missing


def test_functions_of_the_architecture_page_exist():
  page = (ROOT / "docs" / "architecture.md").read_text()
  named = re.findall(r"`([\w/]+\.py)` \(`(\w+\.)?(\w+)`", page)
  assert len(named) > 5
  for name, _, function in named:
    path = ROOT / name
    source = path if path.exists() else ROOT / "agentrl_jax" / name
    assert re.search(rf"\b{function}\b", source.read_text()), (name, function)


def _exists(module: str) -> bool:
  path = ROOT / module.replace(".", "/")
  return path.is_dir() or path.with_suffix(".py").exists()


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_commands_and_imports_of_a_page_name_modules(page):
  text = page.read_text()
  commands = set(re.findall(r"python -m\s+([\w.]+)", text))
  imports = re.findall(r"^\s*from (\w+[\w.]*) import (\w+)", text, re.M)
  named = commands | {module for module, _ in imports}
  ours = {name for name in named if (ROOT / name.split(".")[0]).is_dir()}
  missing = {name.rstrip(".") for name in ours if not _exists(name.rstrip("."))}
  for module, name in imports:
    folder = ROOT / module.replace(".", "/")
    if module in ours and folder.is_dir():
      source = (folder / "__init__.py").read_text()
      if name not in source and not _exists(f"{module}.{name}"):
        missing.add(f"{module}.{name}")
  files = set(re.findall(rf"(?:{'|'.join(FOLDERS)})/[\w/.-]+\.\w+", text))
  missing |= {f for f in files - EXAMPLES if not (ROOT / f).exists()}
  assert not missing


def commands(page: pathlib.Path) -> list[list[str]]:
  """The words of a page's commands that take a config or ablation of ours."""
  text = re.sub(r" *\\\n\s*", " ", page.read_text())
  found = re.findall(r"^(?:    )?\S*python -m (launch\..*)$", text, re.M)
  words = [shlex.split(line.split(" | ")[0], comments=True) for line in found]
  return [
    each
    for each in words
    if any(word.startswith(("--config=configs/", "--abl")) for word in each)
  ]


def test_commands_of_all_pages_start_in_an_empty_folder(tmp_path):
  """Up to what they need: a model, chips, a server."""
  lines = [line for page in PAGES for line in commands(page)]
  assert len(lines) > 50
  with contextlib.chdir(tmp_path):
    for _, *words in lines:
      given = [word for word in words if word.startswith("--config")]
      if "--config=..." not in given and given:
        load_config(given)
  some = [
    [*line, "--only_check_args"]
    for line in {line[0]: line for line in lines}.values()
  ]
  for line, (status, said) in zip(some, outcomes(some, tmp_path), strict=True):
    assert status == 0, (line, said)
  assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_config_keys_of_a_page_exist(page):
  configs = (
    quickstart.get_config(),
    finetune.get_config("folder"),
    smollm2.get_config(),
  )
  text = page.read_text()
  keys = re.findall(r"--config\.([\w.]+)=", text)
  keys += re.findall(r"`([a-z_]+(?:\.[a-z_]+)+)(?:=[^`]*)?`", text)
  missing = {
    key
    for key in keys
    if not key.endswith(FILE_ENDINGS)
    and ".NAME." not in key
    and key.split(".")[0] in configs[0]
    and all(why_unknown(key, config) for config in configs)
  }
  assert not missing


def test_pages_that_the_code_names_exist():
  missing = {
    (str(path.relative_to(ROOT)), page)
    for folder in FOLDERS
    for path in (ROOT / folder).rglob("*")
    if path.suffix in (".py", ".sh", ".txt")
    for page in re.findall(r"\b((?:docs|studies)/\w+\.md)", path.read_text())
    if page not in OF_LLGUIDANCE and not (ROOT / page).exists()
  }
  assert not missing
