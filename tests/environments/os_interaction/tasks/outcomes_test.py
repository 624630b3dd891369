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
  MachineState,
  PackedInto,
  ProcessesEnded,
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
    return outcome.is_right(MachineState(before), MachineState(after))

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
      right | {"/d/e": File(FOLDER, 0o755, 0, 7)},
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
    group_too = changed("/d/a.txt", uid=7) | changed("/d/e/b.txt", gid=7)
    self.assertFalse(self.right(owned, TREE | group_too))
    gone = Becomes(root="/d", removed=("/d/l",))
    left = {p: f for p, f in TREE.items() if p != "/d/l"}
    self.assertTrue(self.right(gone, left))
    self.assertFalse(self.right(gone, TREE))
    edited = Becomes(root="/c", texts={"/c": "k=2\n"}, text_only=True)
    before = {"/c": text("k=1\n")}
    for mode in (0o644, 0o600):
      self.assertTrue(self.right(edited, {"/c": text("k=2\n", mode)}, before))
    for wrong in (
      text("k=2"),
      text("k=2\n", 0),
      text("k=2\n", 0o666),
      text("k=2\n", uid=7),
      dataclasses.replace(text("k=2\n"), gid=7),
    ):
      with self.subTest(wrong=wrong):
        self.assertFalse(self.right(edited, {"/c": wrong}, before))


def packed(members, mode="w:gz"):
  written = io.BytesIO()
  with tarfile.open(fileobj=written, mode=mode) as archive:
    for name, file in members.items():
      member = tarfile.TarInfo(name)
      member.type = {FOLDER: tarfile.DIRTYPE, LINK: tarfile.SYMTYPE}.get(
        file.kind, tarfile.REGTYPE
      )
      member.linkname, member.size = file.target, len(file.content)
      member.mode = file.mode
      archive.addfile(member, io.BytesIO(file.content))
  return File(FILE, 0o644, 0, 0, content=written.getvalue())


class PackedTest(unittest.TestCase):
  outcome = PackedInto("/r/d", "/tmp/d.tar.gz")
  tree = {f"/r{path}": file for path, file in TREE.items()}

  def right(self, archive, tree=None):
    after = MachineState((tree or self.tree) | {"/tmp/d.tar.gz": archive})
    return self.outcome.is_right(MachineState(self.tree), after)

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
      "nobody may read": packed(
        {p: dataclasses.replace(f, mode=0) for p, f in good.items()}
      ),
      "itself unreadable": dataclasses.replace(packed(good), mode=0),
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


PASSWD = "root:x:0:0:root:/root:/bin/bash\nbob:x:1:1::/home/bob:/bin/sh\n"
SHADOW = "root:*:19000:0:99999:7:::\nbob:!:19000:0:99999:7:::\n"
GROUP = "root:x:0:\nstaff:x:50:bob\npilots:x:51:\nusers:x:100:\n"
GSHADOW = "root:*::\nstaff:!::bob\npilots:!::\nusers:*::\n"
EVA = "eva:x:2001:2001::/home/eva:/bin/sh\n"
EVAS_SHADOW = "eva:!:19000:0:99999:7:::\n"
EVAS_GROUPS = GROUP.replace("bob", "bob,eva").replace("51:", "51:eva")
EVAS_GSHADOW = GSHADOW.replace("::bob", "::bob,eva").replace(
  "pilots:!::", "pilots:!::eva"
)
HOME = File(FOLDER, 0o755, 2001, 2001)
# The files after `useradd`, by keyword of `UserTest.right`.
MADE = {
  "passwd": PASSWD + EVA,
  "shadow": SHADOW + EVAS_SHADOW,
  "group": f"{EVAS_GROUPS}eva:x:2001:\n",
  "gshadow": f"{EVAS_GSHADOW}eva:!::\n",
}


def made(name, old, new):
  """Replaces a part of one of the files."""
  assert old in MADE[name]
  return {name: MADE[name].replace(old, new)}


class UserTest(unittest.TestCase):
  outcome = UserMade(
    name="eva",
    uid=2001,
    home="/home/eva",
    shell="/bin/sh",
    groups=("staff", "pilots"),
  )

  def right(self, home=HOME, parent=FOLDER_0, **now):
    before = MachineState(
      {
        "/etc/passwd": text(PASSWD),
        "/etc/shadow": text(SHADOW, 0o640),
        "/etc/group": text(GROUP),
        "/etc/gshadow": text(GSHADOW, 0o640),
        "/home": FOLDER_0,
      }
    )
    files = {}
    for name, content in {**MADE, **now}.items():
      if isinstance(content, str):
        content = text(content, 0o640 if "shadow" in name else 0o644)
      files[f"/etc/{name}"] = content
    files |= {"/home": parent} | ({"/home/eva": home} if home else {})
    return self.outcome.is_right(before, MachineState(files))

  def test_a_user_as_asked(self):
    eva = "eva:x:2001:"
    for right in (
      {},
      {
        "passwd": PASSWD + EVA.replace("2001::", "51::"),
        **made("group", "51:eva", "51:"),
        **made("gshadow", "pilots:!::eva", "pilots:!::"),
      },
      # As by adduser, by a password, and by an editor.
      made("group", "100:", "100:eva")
      | made("gshadow", "users:*::", "users:*::eva"),
      made("shadow", "eva:!", "eva:$y$j9T$salt$hash"),
      {"shadow": SHADOW, "gshadow": GSHADOW},
      made("group", f"{eva}\n", f"{eva}eva\n"),
      {"home": File(FOLDER, 0o700, 2001, 0)},
    ):
      with self.subTest(right=right):
        self.assertTrue(self.right(**right))

  def test_near_misses(self):
    for wrong in (
      {**dict(passwd=PASSWD, shadow=SHADOW, group=GROUP, gshadow=GSHADOW)},
      {"group": GROUP},
      made("passwd", "2001:2001", "2002:2001"),
      made("passwd", "/home/eva:/bin/sh", "/eva:/bin/sh"),
      made("passwd", "eva:/bin/sh", "eva:/bin/bash"),
      {"passwd": EVA},
      {"passwd": MADE["passwd"] + EVA},
      {"passwd": f"{PASSWD}eva:x\n"},
      dict.fromkeys(MADE, ""),
    ):
      with self.subTest(wrong=wrong):
        self.assertFalse(self.right(**wrong))

  def test_a_home_that_the_user_cannot_use(self):
    for home in (
      None,
      text("no folder"),
      FOLDER_0,
      File(FOLDER, 0, 0, 0),
      File(FOLDER, 0, 2001, 2001),
      File(FOLDER, 0o500, 2001, 2001),
      File(FOLDER, 0o777, 2001, 2001),
      File(LINK, 0o777, 2001, 2001, target="/tmp"),
    ):
      with self.subTest(home=home):
        self.assertFalse(self.right(home=home))
    self.assertFalse(self.right(parent=File(FOLDER, 0o700, 0, 0)))

  def test_other_accounts_stay(self):
    for wrong in (
      made("passwd", "bob:/bin/sh", "bob:/bin/bash"),
      made("passwd", "root:x:", "root::"),
      made("shadow", "root:*", "root:"),
      made("shadow", "bob:!", "bob:$y$j9T$salt$hash"),
      {"shadow": MADE["shadow"] + "root::::::::\n"},
      {"shadow": EVAS_SHADOW},
      made("group", "bob,eva", "eva"),
      made("group", "root:x:0:\n", ""),
      made("group", "pilots:x:51:eva", "pilots:x:51:eva,bob"),
      made("gshadow", "root:*::", "root:*:eva:"),
      {"passwd": MADE["passwd"] + "mallory:x:0:0::/:/bin/sh\n"},
      {"group": MADE["group"] + "new:x:2002:\n"},
      {"passwd": text(MADE["passwd"], 0)},
      {"shadow": text(MADE["shadow"], 0o666)},
      {"group": text(MADE["group"], uid=2001)},
    ):
      with self.subTest(wrong=wrong):
        self.assertFalse(self.right(**wrong))

  def test_the_account_has_a_password_or_none_can_log_in(self):
    for wrong in (
      made("passwd", "eva:x", "eva:"),
      made("shadow", "eva:!", "eva:"),
      made("shadow", EVAS_SHADOW, "eva:!:19000:0:99999:7::1:\n"),
    ):
      with self.subTest(wrong=wrong):
        self.assertFalse(self.right(**wrong))

  def test_no_other_groups(self):
    primary = "2001:2001"
    for wrong in (
      made("group", "root:x:0:", "root:x:0:eva"),
      made("passwd", primary, "2001:0"),
      made("passwd", primary, "2001:9999"),
      made("passwd", primary, "2001:0") | made("group", "x:2001:", "x:0:"),
      made("passwd", primary, "2001:00") | made("group", "x:2001:", "x:00:"),
      made("group", "eva:x:2001:\n", "eva:x:0:eva\n"),
      made("passwd", primary, "2001:50")
      | made("group", "eva:x:2001:\n", "eva:x:0:eva\n"),
      made("group", "eva:x:2001:", "eva:x:2001:bob"),
      {"group": MADE["group"] + "more:x:2001:\n"},
    ):
      with self.subTest(wrong=wrong):
        self.assertFalse(self.right(**wrong))


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
      ({"1": "init", "7": f"{other} (stopped)"}, False),
      ({"1": "init", "5": "drumd (stopped)", "7": other}, False),
    ):
      with self.subTest(after=after):
        states = MachineState({}, before), MachineState({}, after)
        self.assertIs(outcome.is_right(*states), expected)
