"""Layouts: what lines are read, and which layout each update has."""

from absl.testing import absltest, parameterized

from agentrl_jax.errors import ConfigError
from agentrl_jax.train.config.layout import Layout, LayoutChooser, read_layouts


def _mesh(**axes):
  return {"data": 1, "fsdp": 1, "tensor": 1, "sequence": 1, "expert": 1} | axes


LONG = Layout(4096, 2, _mesh(fsdp=2, sequence=4))
LINES = ("256 tokens 32 rows fsdp=8", "1024 tokens 8 rows fsdp=8")


class ReadLayoutsTest(parameterized.TestCase):
  def test_the_configs_own_is_the_last(self):
    short, middle, long = read_layouts(LINES, LONG)
    self.assertEqual(short, Layout(256, 32, _mesh(fsdp=8)))
    self.assertEqual(middle, Layout(1024, 8, _mesh(fsdp=8)))
    self.assertEqual(long, LONG)

  def test_a_line_without_axes_has_the_configs_mesh(self):
    short, _ = read_layouts(("1 token 1 row",), LONG)
    self.assertEqual(short, Layout(1, 1, LONG.mesh))

  def test_its_text_reads_as_itself(self):
    for layout in read_layouts(LINES, LONG)[:-1]:
      self.assertEqual(read_layouts((layout.text,), LONG)[0], layout)

  @parameterized.parameters(
    ("256 tokens",),
    ("256 tokens 0 rows",),
    ("0 tokens 8 rows",),
    ("256 tokens, 8 rows",),
    ("256 tokens 8 rows fsdp=0",),
    ("8 rows 256 tokens",),
    ("",),
  )
  def test_refuses_other_lines(self, line):
    with self.assertRaisesRegex(ConfigError, "write '2048 tokens 8 rows'"):
      read_layouts((line,), LONG)

  @parameterized.parameters(
    (("1024 tokens 8 rows", "256 tokens 8 rows"), "must grow"),
    (("256 tokens 8 rows", "256 tokens 4 rows"), "must grow"),
    (("4096 tokens 8 rows",), "below train.row_length=4096"),
    (("256 tokens 8 rows pipeline=2",), "pipeline is no axis"),
    ("256 tokens 8 rows", "write a tuple"),
  )
  def test_refuses(self, lines, message):
    with self.assertRaisesRegex(ConfigError, message):
      read_layouts(lines, LONG)


class LayoutChooserTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.short, self.middle, self.long = self.all = read_layouts(LINES, LONG)
    self.chooser = LayoutChooser(self.all)

  def test_one_layout_is_always_chosen(self):
    chooser = LayoutChooser((LONG,))
    for longest in (0, 1, 4096):
      self.assertEqual(chooser.choose(longest), LONG)
      chooser.begin_interval()
    self.assertEqual(chooser.mesh, LONG.mesh)

  def test_a_line_that_no_row_holds_gets_the_longest(self):
    """Packing refuses it, and names the row's length."""
    self.chooser.choose(100)
    self.chooser.begin_interval()
    self.assertEqual(self.chooser.choose(4097), self.long)

  def test_comes_down_at_checkpoints_alone(self):
    self.assertEqual(self.chooser.choose(100), self.long)
    self.assertEqual(self.chooser.choose(100), self.long)
    self.chooser.begin_interval()
    self.assertEqual(self.chooser.mesh, self.short.mesh)
    self.assertEqual(self.chooser.choose(256), self.short)

  def test_rows_follow_every_update_on_one_mesh(self):
    self.chooser.choose(100)
    self.chooser.begin_interval()
    found = [self.chooser.choose(n) for n in (257, 256, 1024)]
    self.assertEqual(found, [self.middle, self.short, self.middle])

  def test_goes_up_at_once(self):
    self.chooser.choose(100)
    self.chooser.begin_interval()
    self.assertEqual(self.chooser.choose(1025), self.long)
    self.assertEqual(self.chooser.mesh, self.long.mesh)
    self.assertEqual(self.chooser.choose(100), self.long)

  def test_one_long_line_since_the_checkpoint_holds_the_mesh(self):
    self.chooser.choose(100)
    self.chooser.choose(3000)
    self.chooser.choose(100)
    self.chooser.begin_interval()
    self.assertEqual(self.chooser.choose(100), self.long)
    self.chooser.begin_interval()
    self.assertEqual(self.chooser.choose(100), self.short)

  def test_a_checkpoint_before_any_update_changes_nothing(self):
    self.chooser.begin_interval()
    self.assertEqual(self.chooser.mesh, self.long.mesh)

  def test_resumes_where_it_was(self):
    for length in (100, 2000):
      self.chooser.choose(length)
    resumed = LayoutChooser(self.all)
    resumed.restore(self.chooser.snapshot())
    for chooser in (self.chooser, resumed):
      chooser.begin_interval()
      self.assertEqual(chooser.choose(100), self.long)
      chooser.begin_interval()
    again = LayoutChooser(self.all)
    again.restore(resumed.snapshot())
    self.assertEqual(again.choose(100), self.short)

  def test_an_empty_snapshot_starts_afresh(self):
    self.chooser.restore({})
    self.assertEqual(self.chooser.mesh, self.long.mesh)


if __name__ == "__main__":
  absltest.main()
