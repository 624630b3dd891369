"""Tests of game files: reading, refusals, dialects, lists."""

import os
import pathlib
import tempfile
import unittest
from unittest import mock

from agentrl_jax.errors import ConfigError
from environments.alfworld.games.game import AGENTBENCH
from environments.alfworld.games.game_files import find_games, load_game
from environments.alfworld.household import Household
from tests.environments.alfworld.small_games import (
  known_logic,
  study,
  write_game,
)


class LoadGameTest(unittest.TestCase):
  def setUp(self):
    self.enterContext(known_logic())
    folder = self.enterContext(tempfile.TemporaryDirectory())
    self.path = pathlib.Path(folder) / "game.tw-pddl"

  def test_room_goal_and_task_are_read(self):
    write_game(self.path, task='say \\"put\\" a mug')
    game = load_game(self.path)
    self.assertEqual(game.task, 'say "put" a mug')
    self.assertEqual(game.dialect, AGENTBENCH)
    self.assertEqual(game.receptacles, study().receptacles)
    self.assertIn('is to: say "put" a mug.', Household(game).intro)

  def test_files_without_a_game_are_refused(self):
    for changes in (
      {"pddl_problem": None},
      {"grammar": None},
      {"pddl_domain": None},
      {"grammar": "{}"},
      {"pddl_problem": "(define"},
      {"pddl_problem": "(define (problem x))"},
    ):
      path = self.path.with_name(f"{len(list(self.path.parent.iterdir()))}")
      write_game(path, **changes)
      with self.subTest(**changes), self.assertRaises(ConfigError):
        load_game(path)

  def test_unknown_rules_and_words_are_refused(self):
    texts = '{"task": [{"rhs": "Your task is to: go."}], "x": [{"rhs": "Hm."}]}'
    rules = "(define (domain alfred) (:action dance :parameters ()))"
    for changes in ({"grammar": texts}, {"pddl_domain": rules}):
      path = self.path.with_name(str(*changes))
      write_game(path, **changes)
      with (
        self.subTest(**changes),
        self.assertRaisesRegex(ConfigError, "has rules or words"),
      ):
        Household(load_game(path))

  def test_comments_and_layout_do_not_change_the_dialect(self):
    rules = (
      "; hi\n(DEFINE (domain alfred)\n(:action look\n:parameters (?a - agent)))"
    )
    write_game(self.path, pddl_domain=rules)
    self.assertEqual(load_game(self.path).unsupported, "")


class FindGamesTest(unittest.TestCase):
  def setUp(self):
    self.folder = self.enterContext(tempfile.TemporaryDirectory())
    self.list = pathlib.Path(self.folder) / "list.json"

  def test_folder_is_searched_for_solvable_games(self):
    for name, changes in {
      "b/x": {},
      "a": {},
      "c": {"solvable": False},
      "put-with-movable-recep": {},
      "put-EggSliced": {},
    }.items():
      write_game(f"{self.folder}/{name}/game.tw-pddl", **changes)
    found = find_games("", self.folder)
    self.assertEqual(
      [str(path.relative_to(self.folder)) for path in found["dev"]],
      ["a/game.tw-pddl", "b/x/game.tw-pddl"],
    )
    with mock.patch.dict(os.environ, {"ALFWORLD_DATA": self.folder}):
      self.assertEqual(find_games("", ""), found)

  def test_missing_games_are_counted(self):
    write_game(f"{self.folder}/a/game.tw-pddl")
    self.list.write_text('{"put": ["a/game.tw-pddl", "b/game.tw-pddl"]}')
    with self.assertRaisesRegex(ConfigError, "1 of the 2 games"):
      find_games(str(self.list), self.folder)

  def test_lists_of_another_form_are_refused(self):
    for text in ("[]", "{", '{"put": 1}'):
      self.list.write_text(text)
      with self.subTest(text), self.assertRaisesRegex(ConfigError, "lists"):
        find_games(str(self.list), self.folder)
