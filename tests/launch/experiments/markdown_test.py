"""Blocks of a page: what is filled, and what is refused and left alone."""

import errno
import pathlib

import pytest

from agentrl_jax.errors import ConfigError
from launch import report
from launch.experiments.markdown import filled

CSV = "arm,seed,state,stage,mode,task,n,success,low,high,reward"
FINALS = "<!-- finals: x.csv rl greedy -->\n"
END = "<!-- end -->\n"


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
  """Has the scores of four arms whose seeds vary alike."""
  rows = [CSV]
  for place, (arm, success) in enumerate(
    {"a": 0.5, "b": 0.53, "c": 0.6, "e": 0.55}.items(), 1
  ):
    for seed in range(4):
      for stage, start in (("warm_start", 0.2), ("rl", success)):
        level = start + seed * 7 * place % 5 / 40
        rows.append(
          f"{arm},{seed},finished,{stage},greedy,x,2000,{level},0,1,0"
        )
  (tmp_path / "x.csv").write_text("\n".join(rows) + "\n")
  (tmp_path / "m.csv").write_text("x,y\n1,2\n")
  return tmp_path


def contrasts(folder, words, header="rl greedy"):
  """Returns the rows of a block of contrasts."""
  page = f"<!-- contrasts: x.csv {header}\n{words}\n-->\n{END}"
  _, _, table = filled(page, folder).partition("\n-->\n")
  return table.removesuffix(END).splitlines()[2:]


@pytest.mark.parametrize(
  "words",
  [
    "l: b - a \nm: c - a",
    "l:  b - a\nm: c -  a",
    "l: b - a\nm: c@rl - a\t",
    "l: b@rl - a@rl\nm: c\N{NO-BREAK SPACE} - a",
  ],
)
def test_a_blank_and_the_blocks_own_stage_change_no_test(folder, words):
  corrected = contrasts(folder, "l: b - a\nm: c - a")
  assert len(corrected) == 4  # the paired t beside the pooled test
  assert contrasts(folder, words) == corrected


@pytest.mark.parametrize("other", ["b - a", "b@rl - a "])
def test_two_lines_of_the_same_sides_are_refused(folder, other):
  with pytest.raises(ConfigError, match="two lines are of b - a.*'two: "):
    contrasts(folder, f"one: b - a\ntwo: {other}")
  assert len(contrasts(folder, "one: b - a\ntwo: a - b")) == 4


def test_contrasts_without_a_line_are_refused(folder):
  for words in ("x.csv rl greedy", "x.csv"):
    with pytest.raises(ConfigError, match="then a line `label: arm - arm`"):
      filled(f"<!-- contrasts: {words} -->\n{END}", folder)


def test_levels_of_a_rise_are_refused(folder):
  """Levels are clipped to shares, and a rise may be below 0."""
  page = f"{FINALS.replace('rl', 'rise')}{END}"
  with pytest.raises(ConfigError, match="`finals` have levels after a stage"):
    filled(page, folder)
  assert len(contrasts(folder, "b - a", "rise greedy")) == 2


@pytest.mark.parametrize(
  ("page", "line"),
  [
    (f"one\n{FINALS}PROSE\n{FINALS}{END}", "line 2 .*finals"),
    (f"one\n{FINALS}PROSE\n<!-- final: x.csv rl greedy -->\n{END}", "line 2 "),
    (f"one\n{FINALS}PROSE\n", "line 2 "),
    (f"{FINALS[:-5]}\nPROSE\n{FINALS}{END}", "line 1 .*finals"),
    (f"{FINALS}{END}PROSE\n{END}", "line 4 .*<!-- end -->"),
    (f"<!-- turn -->\none\n{END}PROSE\n{END}", "line 5 .*<!-- end -->"),
    (f"<!-- final: x.csv rl greedy -->\nold\n{END}", "line 1 .*final:"),
    ("<!-- final: x.csv rl greedy -->\nold\n", "line 1 .*final:"),
    (f"<!-- claim: evidence\n-->\nold\n{END}", "line 4 .*end"),
    (f"{FINALS[:-1]} \nold\n{END}", "line 1 "),
    (f"<!--finals: x.csv rl greedy -->\nold\n{END}", "line 1 "),
    (f"{FINALS}old\n<!--end-->\n", "line 1 "),
  ],
)
def test_a_part_of_no_block_is_refused(folder, page, line):
  with pytest.raises(ConfigError, match=f"{line}.* is of no block"):
    filled(page, folder)


def test_other_comments_are_left_alone(folder):
  for page in (
    "<!-- Note: see more in x.csv -->\n",
    f"<!-- turn -->\none\n{END}<!-- update -->\ntwo\n{END}",
  ):
    assert filled(page, folder) == page


def test_words_may_hold_a_greater_than(folder):
  (row, _) = contrasts(folder, "b > a?: b - a")
  assert row.startswith("| b > a? | +")


@pytest.mark.parametrize(
  ("begin", "message"),
  [
    ("measured: m.csv ", "says `by FIELD`"),
    ("measured: m.csv by x\ny = {y.std:.2f}", "format '{y.std:.2f}'"),
    ("claims: . ", "a block of claims has none"),
    ("claims: .\nA | 1.2.3 | x.csv rl greedy x: b - a", "is no claim"),
    ("finals: x.csv rl sampled", "has no evaluation of rl, sampled"),
  ],
)
def test_an_error_names_its_block(folder, begin, message):
  (folder / "costs.csv").write_text("scores,cells,core_hours\nx.csv,8,2.0\n")
  first = f"<!-- {begin}".partition("\n")[0]
  with pytest.raises(ConfigError) as found:
    filled(f"{FINALS}{END}<!-- {begin}\n-->\n{END}", folder)
  assert str(found.value).startswith(f"in the block '{first}")
  assert message in str(found.value)


def test_a_page_that_cannot_be_written_stays(folder, capsys, monkeypatch):
  page = folder / "page.md"
  page.write_text(f"{FINALS}{END}My prose.\n")
  before = page.read_text()

  def on_a_full_disk(path, text, *_):
    with path.open("wb") as file:
      file.write(text[:9] if isinstance(text, bytes) else text[:9].encode())
    raise OSError(errno.ENOSPC, "No space left on device")

  for name in ("write_text", "write_bytes"):
    monkeypatch.setattr(pathlib.Path, name, on_a_full_disk)
  with pytest.raises(SystemExit) as end:
    report.main([f"--fill={page}"])
  assert end.value.code == 2
  assert "page.md cannot be written: No space" in capsys.readouterr().err
  assert page.read_text() == before


def test_a_page_behind_a_link_is_filled_and_the_link_stays(folder):
  (folder / "pages").mkdir()
  page, link = folder / "pages" / "page.md", folder / "link.md"
  page.write_text(f"{FINALS}{END}")
  link.symlink_to(page)
  report.main([f"--fill={link}"])
  assert link.is_symlink()
  assert "| a, 4 seeds |" in page.read_text()
