"""Bytes that compiled programs exchange, against formulas."""

from absl.testing import absltest, parameterized

from launch.planning.compiler.collectives import (
  UnreadableProgram,
  between_slices,
  bytes_by_kind,
  collectives,
)
from launch.planning.compiler.compiled import bytes_moved
from launch.planning.compiler.hlo import Module
from tests.launch.planning import make_recorded
from tests.launch.planning.make_recorded import LAYERS, ROWS, SHARES, WIDTH

BYTES = 2  # of a bfloat16
REST = (SHARES - 1) / SHARES


def _module(name: str) -> Module:
  return Module((make_recorded.FOLDER / f"{name}.hlo").read_text())


def _received(name: str, **settings) -> dict[str, float]:
  found = collectives(_module(name), num_devices=SHARES, **settings)
  return bytes_by_kind(found)


class CollectivesTest(parameterized.TestCase):
  def test_split_weights_are_gathered_twice_and_scattered_once(self):
    once = LAYERS * WIDTH * WIDTH * BYTES * REST
    received = _received("fully_sharded")
    self.assertEqual(received.keys(), {"all-gather", "reduce-scatter"})
    self.assertBetween(received["all-gather"], 2 * once, 2.2 * once)
    self.assertBetween(received["reduce-scatter"], once, 1.1 * once)

  def test_split_products_are_summed_once(self):
    self.assertEqual(
      _received("tensor_parallel"),
      {"all-reduce": 2 * ROWS * WIDTH * BYTES * REST},
    )

  @parameterized.parameters(1, 5)
  def test_a_loop_whose_end_is_data_turns_as_often_as_told(self, turns):
    self.assertEqual(
      _received("ring", unknown_turns=turns),
      {"collective-permute": turns * ROWS * WIDTH * BYTES},
    )

  def test_a_group_is_where_the_mesh_puts_it(self):
    found = collectives(_module("tensor_parallel"), num_devices=SHARES)
    self.assertEqual([one.group for one in found], [tuple(range(SHARES))])

  @parameterized.parameters(
    ("replica_groups={{0,2},{1,3}}", (0, 2)),
    ("replica_groups=[2,4]<=[8]", (0, 1, 2, 3)),
    ("replica_groups=[4,2]<=[2,4]T(1,0)", (0, 4)),
    ("replica_groups=mesh['a'=2,'b'=2,'c'=2] {'a','c'}", (0, 1, 4, 5)),
    ("replica_groups=mesh['a'=4,'b'=2] {'b'}", (0, 1)),
    (
      "replica_groups=mesh['a'=2,'b'=2,'c'=2], device_ids=([2,2,2]T(0,2,1)) "
      "{'c'}",
      (0, 2),
    ),
  )
  def test_groups_are_read_however_they_are_written(self, written, group):
    (found,) = collectives(Module(_reduction(written)), num_devices=8)
    self.assertEqual(found.group, group)

  def test_groups_in_unknown_writing_are_refused(self):
    with self.assertRaisesRegex(UnreadableProgram, "groups of total"):
      collectives(
        Module(_reduction("replica_groups=<of some kind>")), num_devices=8
      )

  def test_an_asynchronous_exchange_counts_once(self):
    text = _entry(
      """
  %x = bf16[4,8]{1,0} parameter(0)
  %s = (bf16[4,8]{1,0}, bf16[16,8]{1,0}) all-gather-start(%x), channel_id=1, replica_groups={{0,1,2,3}}, dimensions={0}
  ROOT %d = bf16[16,8]{1,0} all-gather-done(%s)"""  # noqa: E501
    )
    found = collectives(Module(text), num_devices=4)
    self.assertEqual(
      bytes_by_kind(found), {"all-gather": 16 * 8 * BYTES * 3 / 4}
    )

  def test_a_gather_that_passes_fusions_counts_once_per_turn_of_its_loop(self):
    gather = (
      "  ROOT %g = bf16[16,8]{1,0} all-gather(%p), channel_id=7, "
      'replica_groups={{0,1,2,3}}, frontend_attributes={chain_id="0"}'
    )
    text = "HloModule m\n" + "".join(
      f"%c.{n} (p: bf16[4,8]) -> bf16[16,8] {{\n"
      f"  %p = bf16[4,8]{{1,0}} parameter(0)\n{gather}\n}}\n"
      for n in (1, 2)
    )
    text += _entry(
      """
  %x = bf16[4,8]{1,0} parameter(0)
  %a = bf16[16,8]{1,0} fusion(%x), kind=kCustom, calls=%c.1
  ROOT %b = bf16[16,8]{1,0} fusion(%x), kind=kCustom, calls=%c.2"""
    )
    (found,) = collectives(Module(text), num_devices=4)
    self.assertTrue(found.is_overlapped)

  def test_an_exchange_that_the_sparse_core_runs_is_overlapped(self):
    text = (
      """HloModule m
%scattered.1 (p: bf16[16,8]) -> bf16[4,8] {
  %p = bf16[16,8]{1,0} parameter(0)
  ROOT %r = bf16[4,8]{1,0} reduce-scatter(%p), channel_id=3, replica_groups={{0,1,2,3}}, dimensions={0}, to_apply=%add
}, execution_thread="sparsecore"
"""  # noqa: E501
      + _entry(
        """
  %x = bf16[16,8]{1,0} parameter(0)
  %s = ((bf16[16,8]{1,0}), bf16[4,8]{1,0}) call-start(%x), async_execution_thread="sparsecore", to_apply=%scattered.1
  %d = bf16[4,8]{1,0} call-done(%s)
  ROOT %t = bf16[4,8]{1,0} all-reduce(%d), channel_id=4, replica_groups={{0,1,2,3}}, to_apply=%add"""  # noqa: E501
      )
    )
    scattered, summed = collectives(Module(text), num_devices=4)
    self.assertEqual(
      (scattered.kind, scattered.num_bytes, scattered.is_overlapped),
      ("reduce-scatter", 16 * 8 * BYTES * 3 / 4, True),
    )
    self.assertEqual((summed.kind, summed.is_overlapped), ("all-reduce", False))

  def test_a_scatter_in_a_fusion_keeps_the_cores_waiting(self):
    text = (
      """HloModule m
%all-reduce-scatter.1 (p: bf16[16,8]) -> bf16[4,8] {
  %p = bf16[16,8]{1,0} parameter(0)
  %i = s32[] constant(0)
  %r = bf16[16,8]{1,0} all-reduce(%p), channel_id=3, replica_groups={{0,1,2,3}}, to_apply=%add
  ROOT %q = bf16[4,8]{1,0} dynamic-slice(%r, %i, %i), dynamic_slice_sizes={4,8}
}
"""  # noqa: E501
      + _entry(
        """
  %x = bf16[16,8]{1,0} parameter(0)
  ROOT %s = bf16[4,8]{1,0} fusion(%x), kind=kCustom, calls=%all-reduce-scatter.1"""  # noqa: E501
      )
    )
    (found,) = collectives(Module(text), num_devices=4)
    self.assertEqual(
      (found.kind, found.is_overlapped), ("reduce-scatter", False)
    )


class BetweenSlicesTest(parameterized.TestCase):
  """Exchanges as libtpu 0.0.42.1 writes them for two and more slices."""

  @parameterized.parameters(
    ("ALL_REDUCE", '"{1,2}x{0:3}"', "all-reduce", 2, 1.0),
    ("ALL_REDUCE", '"{1,2,3}x{0:3}"', "all-reduce", 3, 4 / 3),
    ("ALL_GATHER", '"{1:4}x{0:63}"', "all-gather", 4, 3 / 4),
    ("REDUCE_SCATTER", '"{1,2,3,4}x{0:3}"', "reduce-scatter", 4, 3.0),
    ("ALL_TO_ALL", "{{100000,100001,200000,200001}}", "all-to-all", 2, 1 / 2),
    (
      "ONE_TO_ONE",
      "{{100003->200000},{200003->100000}}",
      "collective-permute",
      2,
      1.0,
    ),
  )
  def test_bytes_are_those_from_other_slices(
    self, written, target, kind, num_slices, factor
  ):
    (found,) = collectives(
      Module(_between_slices(written, target)), num_devices=4
    )
    self.assertEqual((found.kind, found.num_slices), (kind, num_slices))
    self.assertAlmostEqual(
      found.total_bytes, factor * 64 * 8 * 128 * BYTES, delta=1
    )
    self.assertEqual(between_slices([found]), found.total_bytes)

  def test_a_pair_counts_once_and_apart_from_exchanges_over_links(self):
    text = _between_slices("ALL_REDUCE", '"{1,2}x{0:3}"').replace(
      "ROOT %r",
      "%s = bf16[8]{0} all-reduce(%x), replica_groups={{0,1,2,3}}\n  ROOT %r",
    )
    found = collectives(Module(text), num_devices=4)
    self.assertEqual([one.num_slices for one in found], [2, 1])
    self.assertEqual(between_slices(found), found[0].total_bytes)

  @parameterized.parameters(
    ("BROADCAST", '"{1,2}x{0:3}"'),
    ("ALL_REDUCE", '"{1}x{0:3}"'),
    ("ALL_REDUCE", "<somewhere>"),
  )
  def test_unknown_writing_is_refused(self, written, target):
    with self.assertRaisesRegex(UnreadableProgram, "recv is an exchange betw"):
      collectives(Module(_between_slices(written, target)), num_devices=4)

  def test_other_transfers_of_the_host_are_no_exchange(self):
    text = _between_slices("ALL_REDUCE", '"{1,2}x{0:3}"').replace(
      "megascale", "callback"
    )
    self.assertEqual(collectives(Module(text), num_devices=4), [])


def _between_slices(written: str, target: str) -> str:
  attributes = (
    "channel_id=1, is_host_transfer=true, frontend_attributes={"
    '_xla_host_transfer_handler_name="xla_megascale_runtime",'
    f"_xla_megascale_target={target},"
    f'_xla_megascale_transfer_type="{written}"}}'
  )
  return _entry(
    f"""
  %x = bf16[64,8,128]{{2,1,0:T(8,128)(2,1)}} parameter(0)
  %t = token[] after-all()
  %send = (bf16[64,8,128]{{2,1,0:T(8,128)(2,1)}}, u32[], token[]) send(%x, %t), {attributes}
  %recv = (bf16[64,8,128]{{2,1,0:T(8,128)(2,1)}}, u32[], token[]) recv(%t), {attributes}
  %sent = token[] send-done(%send), channel_id=1, is_host_transfer=true
  ROOT %r = (bf16[64,8,128]{{2,1,0}}, token[]) recv-done(%recv), channel_id=1, is_host_transfer=true"""  # noqa: E501
  )


class LoopsTest(parameterized.TestCase):
  @parameterized.parameters((0, 4, 2, 2), (0, 28, 1, 28), (1, 8, 2, 4))
  def test_turns_follow_from_start_end_and_step(self, start, end, step, turns):
    found = collectives(Module(_loop(start, end, step)), num_devices=2)
    self.assertEqual([one.times for one in found], [turns])

  def test_kernels_that_bring_braces_of_their_own_do_not_end_anything(self):
    kernel = """
  %k = f32[4]{0} custom-call(%x), custom_call_target="tpu_custom_call", kernel_metadata={
{"xprof_metadata": {}
}}, metadata={op_name="splash"}"""  # noqa: E501
    text = _loop(0, 4, 1).replace("%next", kernel.lstrip("\n") + "\n  %next", 1)
    found = collectives(Module(text), num_devices=2)
    self.assertEqual([one.times for one in found], [4])


class TrafficTest(absltest.TestCase):
  def _moves(self, num_bytes, entry, before=""):
    self.assertEqual(bytes_moved(Module(before + _entry(entry))), num_bytes)

  def test_a_product_reads_its_operands_and_writes_its_result(self):
    self._moves(
      2 * (64 * 32 + 32 * 16) + 4 * 64 * 16,
      """
  %x = bf16[64,32]{1,0} parameter(0)
  %w = bf16[32,16]{1,0} parameter(1)
  ROOT %y = f32[64,16]{1,0} dot(%x, %w), lhs_contracting_dims={1}""",
    )

  def test_values_kept_on_the_chip_are_no_traffic(self):
    self._moves(
      2 * 2 * 64 * 32,
      """
  %x = bf16[64,32]{1,0} parameter(0)
  %y = bf16[64,32]{1,0:T(8,128)(2,1)S(1)} negate(%x)
  ROOT %z = bf16[64,32]{1,0} negate(%y)""",
    )

  def test_of_a_stack_only_the_layer_is_read_and_written(self):
    """Also where a fusion within the fusion takes it."""
    taken = "dynamic-slice(%s, %i, %i, %i), dynamic_slice_sizes={1,4,4}"
    within = f"""%d (i: s32[], s: f32[8,4,4], t: f32[8,4,4]) -> f32[1,4,4] {{
  %i = s32[] parameter(0)
  %s = f32[8,4,4]{{2,1,0}} parameter(1)
  %t = f32[8,4,4]{{2,1,0}} parameter(2)
  %k = f32[1,4,4]{{2,1,0}} {taken.replace("%s", "%t")}
  %l = f32[1,4,4]{{2,1,0}} {taken}
  ROOT %a = f32[1,4,4]{{2,1,0}} add(%k, %l)
}}
"""
    for layer, read in (
      (taken, 16),
      ("fusion(%i, %s, %s), kind=kLoop, calls=%d", 2 * 16),
    ):
      self._moves(
        4 * (read + 16 + 1),
        """
  %x = f32[8,4,4]{2,1,0} parameter(0)
  %n = s32[] parameter(1)
  ROOT %y = f32[8,4,4]{2,1,0} fusion(%x, %n), kind=kLoop, calls=%c""",
        f"""HloModule m
{within}%c (s: f32[8,4,4], i: s32[]) -> f32[8,4,4] {{
  %s = f32[8,4,4]{{2,1,0}} parameter(0)
  %i = s32[] parameter(1)
  %l = f32[1,4,4]{{2,1,0}} {layer}
  ROOT %u = f32[8,4,4]{{2,1,0}} dynamic-update-slice(%s, %l, %i, %i, %i)
}}
""",
      )

  def test_of_weights_in_parts_each_is_read_once(self):
    """As a decode program prefetches them, up to memory of the chip."""
    parts = "".join(
      f"""
  %s{n} = ((s8[64]{{0}}), s8[16]{{0:T(1024){place}}}, s32[]{{:S(2)}}) slice-start(%x), slice={{[{n}:{n + 16}]}}
  %d{n} = s8[16]{{0:T(1024){place}}} slice-done(%s{n})"""  # noqa: E501
      for n, place in ((0, "S(1)"), (16, "S(1)"), (32, ""))
    )
    self._moves(
      16 + 16 + 2 * 16 + 16,
      f"""
  %x = s8[64]{{0}} parameter(0){parts}
  ROOT %y = s8[16]{{0}} negate(%d0)""",
    )

  def test_of_a_cache_only_the_new_entries_are_written(self):
    self._moves(
      2 * 2 * 2 * 64 + 4 * 2,
      """
  %x = bf16[8,64]{1,0} parameter(0)
  %j = s32[2]{0} parameter(1)
  %m = bf16[2,64]{1,0} parameter(2)
  ROOT %y = bf16[8,64]{1,0} fusion(%x, %j, %m), kind=kLoop, calls=%c""",
      """HloModule m
%c (s: bf16[8,64], i: s32[2], n: bf16[2,64]) -> bf16[8,64] {
  %s = bf16[8,64]{1,0} parameter(0)
  %i = s32[2]{0} parameter(1)
  %n = bf16[2,64]{1,0} parameter(2)
  ROOT %u = bf16[8,64]{1,0} scatter(%s, %i, %n), to_apply=%a
}
""",
    )

  def test_of_split_layers_every_weight_is_read_from_memory(self):
    weights = 3 * LAYERS * WIDTH * WIDTH * BYTES / SHARES
    self.assertGreater(bytes_moved(_module("fully_sharded")), weights)


def _loop(start: int, end: int, step: int) -> str:
  """A sum over two chips in a loop, its counter unrolled by `step`."""
  ones = "".join(
    f"  %n.{k} = s32[] add(%{f'n.{k - 1}' if k else 'i'}, %one)\n"
    for k in range(step)
  )
  return f"""HloModule m
%body (p: (s32[], f32[4])) -> (s32[], f32[4]) {{
  %p = (s32[], f32[4]{{0}}) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %x = f32[4]{{0}} get-tuple-element(%p), index=1
  %one = s32[] constant(1)
{ones}  %next = f32[4]{{0}} all-reduce(%x), replica_groups={{{{0,1}}}}
  ROOT %t = (s32[], f32[4]{{0}}) tuple(%n.{step - 1}, %next)
}}
%more (q: (s32[], f32[4])) -> pred[] {{
  %q = (s32[], f32[4]{{0}}) parameter(0)
  %j = s32[] get-tuple-element(%q), index=0
  %end = s32[] constant({end})
  ROOT %lt = pred[] compare(%j, %end), direction=LT
}}
""" + _entry(
    f"""
  %y = f32[4]{{0}} parameter(0)
  %start = s32[] constant({start})
  %c = s32[] copy(%start)
  %state = (s32[], f32[4]{{0}}) tuple(%c, %y)
  ROOT %w = (s32[], f32[4]{{0}}) while(%state), condition=%more, body=%body"""
  )


def _entry(body: str) -> str:
  return f"HloModule m\nENTRY %main () -> () {{{body}\n}}\n"


def _reduction(groups: str) -> str:
  return _entry(
    f"""
  %x = f32[4]{{0}} parameter(0)
  ROOT %total = f32[4]{{0}} all-reduce(%x), {groups}, to_apply=%a"""
  )
