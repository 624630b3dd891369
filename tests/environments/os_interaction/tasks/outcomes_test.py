"""Outcomes accept the right state and refuse near misses."""

import dataclasses
import io
import tarfile
import unittest

from environments.os_interaction.machines.files import (
  FILE,
  FOLDER,
  LINK,
  OTHER,
  File,
)
from environments.os_interaction.tasks.outcomes import (
  Becomes,
  PackedInto,
  ProcessesEnded,
  State,
  UserMade,
)

FOLDER_0 = File(FOLDER, 0o755, 0, 0)


def text(content, mode=0o644, uid=0):
  return File(FILE, mode, uid, 0, content=content.encode())


TREE = {
  "/d": FOLDER_0,
  "/d/a.txt": text("one\n"),
  "/d/e": FOLDER_0,
  "/d/e/b.txt": text("two\n"),
  "/d/l": File(LINK, 0o777, 0, 0, target="a.txt"),
}


def changed(path, **values):
  return TREE | {path: dataclasses.replace(TREE[path], **values)}


class BecomesTest(unittest.TestCase):
  def right(self, outcome, after, before=TREE):
    return outcome.is_right(State(before), State(after))

  def test_only_the_given_files_may_change(self):
    outcome = Becomes(root="/d", modes={"/d/a.txt": 0o600})
    right = changed("/d/a.txt", mode=0o600)
    self.assertTrue(self.right(outcome, right))
    for wrong in (
      TREE,
      {},
      right | {"/d/new": text("")},
      {p: f for p, f in right.items() if p != "/d/l"},
      right | changed("/d/e/b.txt", mode=0o600) | {"/d/a.txt": text("one\n")},
      right | {"/d/e/b.txt": text("")},
      right | {"/d/e": File(FOLDER, 0o700, 0, 0)},
      right | {"/d/a.txt": File(OTHER, 0o600, 0, 0)},
      right | {"/d/l": File(LINK, 0o777, 0, 0, target="/dev/zero")},
      {"/d": File(LINK, 0o777, 0, 0, target="/dev/null")},
    ):
      with self.subTest(wrong=wrong):
        self.assertFalse(self.right(outcome, wrong))

  def test_a_renamed_file_keeps_its_content(self):
    outcome = Becomes(root="/d", renamed={"/d/a.txt": "/d/a.md"})
    rest = {p: f for p, f in TREE.items() if p != "/d/a.txt"}
    self.assertTrue(self.right(outcome, rest | {"/d/a.md": text("one\n")}))
    for content in ("", "two\n"):
      wrong = rest | {"/d/a.md": text(content)}
      self.assertFalse(self.right(outcome, wrong), content)
    self.assertFalse(self.right(outcome, TREE | {"/d/a.md": text("one\n")}))

  def test_renaming_in_a_ring_keeps_all(self):
    ring = {"/d/a.txt": "/d/e/b.txt", "/d/e/b.txt": "/d/a.txt"}
    swapped = TREE | {"/d/a.txt": text("two\n"), "/d/e/b.txt": text("one\n")}
    outcome = Becomes(root="/d", renamed=ring)
    self.assertTrue(self.right(outcome, swapped))
    self.assertFalse(self.right(outcome, TREE))

  def test_owners_links_and_texts(self):
    owned = Becomes(root="/d", owners={"/d/a.txt": 7})
    self.assertTrue(self.right(owned, changed("/d/a.txt", uid=7, gid=9)))
    self.assertFalse(self.right(owned, changed("/d/e/b.txt", uid=7)))
    gone = Becomes(root="/d", removed=("/d/l",))
    left = {p: f for p, f in TREE.items() if p != "/d/l"}
    self.assertTrue(self.right(gone, left))
    self.assertFalse(self.right(gone, TREE))
    edited = Becomes(root="/c", texts={"/c": "k=2\n"}, text_only=True)
    before = {"/c": text("k=1\n")}
    for mode in (0o644, 0o600):
      self.assertTrue(self.right(edited, {"/c": text("k=2\n", mode)}, before))
    self.assertFalse(self.right(edited, {"/c": text("k=2")}, before))


def packed(members, mode="w:gz"):
  written = io.BytesIO()
  with tarfile.open(fileobj=written, mode=mode) as archive:
    for name, file in members.items():
      member = tarfile.TarInfo(name)
      member.type = {FOLDER: tarfile.DIRTYPE, LINK: tarfile.SYMTYPE}.get(
        file.kind, tarfile.REGTYPE
      )
      member.linkname, member.size = file.target, len(file.content)
      archive.addfile(member, io.BytesIO(file.content))
  return File(FILE, 0o644, 0, 0, content=written.getvalue())


class PackedTest(unittest.TestCase):
  outcome = PackedInto("/r/d", "/tmp/d.tar.gz")
  tree = {f"/r{path}": file for path, file in TREE.items()}

  def right(self, archive, tree=None):
    after = State((tree or self.tree) | {"/tmp/d.tar.gz": archive})
    return self.outcome.is_right(State(self.tree), after)

  def members(self, prefix):
    return {f"{prefix}{p[4:]}": file for p, file in self.tree.items()}

  def test_member_names_of_common_tar_calls(self):
    for prefix in ("d", "./d", "r/d", "/r/d", "."):
      with self.subTest(prefix=prefix):
        self.assertTrue(self.right(packed(self.members(prefix))))
    files = {p: f for p, f in self.members("d").items() if f.kind != FOLDER}
    self.assertTrue(self.right(packed(files)))

  def test_other_archives_are_refused(self):
    good = self.members("d")
    flat = {p.rpartition("/")[2]: f for p, f in good.items()}
    for name, wrong in {
      "flat": packed(flat),
      "empty files": packed(
        {p: dataclasses.replace(f, content=b"") for p, f in good.items()}
      ),
      "one missing": packed({p: good[p] for p in list(good)[:-1]}),
      "one too many": packed(good | {"d/x": text("x")}),
      "not compressed": packed(good, "w"),
      "bzip2": packed(good, "w:bz2"),
      "no archive": text("hello"),
      "a pipe": File(OTHER, 0o644, 0, 0),
      "empty": text(""),
      "cut off": dataclasses.replace(
        packed(good), content=packed(good).content[:-9]
      ),
    }.items():
      with self.subTest(name):
        self.assertFalse(self.right(wrong))

  def test_the_folder_stays(self):
    emptied = self.tree | {"/r/d/a.txt": text("")}
    for archive in (packed(self.members("d")), packed({"d": FOLDER_0})):
      self.assertFalse(self.right(archive, emptied))

  def test_a_bomb_is_not_unpacked(self):
    content = bytes(100 << 20)
    bomb = {"d/a.txt": File(FILE, 0o644, 0, 0, content=content)}
    self.assertFalse(self.right(packed(bomb)))


class UserTest(unittest.TestCase):
  outcome = UserMade(
    name="eva",
    uid=2001,
    home="/home/eva",
    shell="/bin/sh",
    groups=("staff", "pilots"),
  )
  passwd = "root:x:0:0:root:/root:/bin/bash\nbob:x:1:1::/home/bob:/bin/sh\n"
  group = "root:x:0:\nstaff:x:50:bob\npilots:x:51:\n"
  eva = "eva:x:2001:2001::/home/eva:/bin/sh\n"
  groups = "root:x:0:\nstaff:x:50:bob,eva\npilots:x:51:eva\neva:x:2001:\n"

  def right(self, passwd, group, home=FOLDER_0):
    before = {"/etc/passwd": text(self.passwd), "/etc/group": text(self.group)}
    after = {"/etc/passwd": text(passwd), "/etc/group": text(group)}
    after |= {"/home/eva": home} if home else {}
    return self.outcome.is_right(State(before), State(after))

  def test_a_user_as_asked(self):
    self.assertTrue(self.right(self.passwd + self.eva, self.groups))
    primary = self.eva.replace("2001::", "51::")
    by_primary = self.groups.replace("pilots:x:51:eva", "pilots:x:51:")
    self.assertTrue(self.right(self.passwd + primary, by_primary))

  def test_near_misses(self):
    good = self.passwd + self.eva
    for passwd, group, home in (
      (self.passwd, self.group, None),
      (good, self.groups, None),
      (good, self.groups, text("no folder")),
      (good, self.group, FOLDER_0),
      (good.replace("2001:2001", "2002:2001"), self.groups, FOLDER_0),
      (
        good.replace("/home/eva:/bin/sh", "/eva:/bin/sh"),
        self.groups,
        FOLDER_0,
      ),
      (good.replace("eva:/bin/sh", "eva:/bin/bash"), self.groups, FOLDER_0),
      (good.replace("bob:/bin/sh", "bob:/bin/bash"), self.groups, FOLDER_0),
      (self.eva, self.groups, FOLDER_0),
      (good + self.eva, self.groups, FOLDER_0),
      (good, self.groups.replace("bob,eva", "eva"), FOLDER_0),
      (good, self.groups.replace("root:x:0:\n", ""), FOLDER_0),
      ("", "", FOLDER_0),
      (self.passwd + "eva:x\n", self.groups, FOLDER_0),
    ):
      with self.subTest(passwd=passwd, group=group, home=home):
        self.assertFalse(self.right(passwd, group, home))


class ProcessesTest(unittest.TestCase):
  def test_by_numbers_and_names(self):
    outcome = ProcessesEnded("drumd", "drumd-something-long")
    other = "drumd-something"  # as the kernel keeps it
    before = {"1": "init", "5": "drumd", "6": "drumd", "7": other}
    for after, expected in (
      ({"1": "init", "7": other}, True),
      ({"1": "init", "7": other, "9": "bash"}, True),
      (before, False),
      ({"1": "init", "5": "drumd", "7": other}, False),
      ({"1": "init", "5": "renamed", "7": other}, False),
      ({"1": "init", "8": "drumd", "7": other}, False),
      ({"1": "init"}, False),
      ({"1": "init", "8": other}, False),
      ({"1": "init", "7": other, "8": other}, False),
      ({"1": "init", "7": "drumd"}, False),
    ):
      with self.subTest(after=after):
        states = State({}, before), State({}, after)
        self.assertIs(outcome.is_right(*states), expected)
