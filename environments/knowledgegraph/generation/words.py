"""The words that made-up things are named with.

Few and short on purpose: a small tokenizer must cover them. Names are composed,
so that the number of different worlds is not bounded by the lists.
"""


def _words(text: str) -> tuple[str, ...]:
  return tuple(text.split())


FIRST_NAMES = _words(
  "Ada Boris Clara Dario Edith Felix Gina Hugo Ida Jonas Kira Lars Mona Nils "
  "Oona Pablo Ruth Stefan Thea Uwe Vera Walt Yara Zeno"
)
LAST_NAMES = _words(
  "Abbott Bauer Castro Dietz Engel Faber Gomez Hansen Ibsen Jensen Keller "
  "Lund Moreau Nagy Ortiz Petrov Quinn Rossi Silva Torres Ulrich Vance Weber"
)
QUALITIES = _words(
  "Amber Bitter Broken Distant Empty Frozen Gentle Hidden Hollow Ivory Last "
  "Little Lonely Narrow Pale Quiet Rapid Scarlet Second Silent Stolen Velvet"
)
THINGS = _words(
  "Anchor Arrow Beacon Candle Castle Desert Echo Feather Harbor Island Journey "
  "Lantern Letter Meadow Mirror Orchard Portrait River Shadow Summer Tide "
  "Voyage Window Winter"
)
PLACE_STARTS = _words(
  "Ald Bel Cor Dun El Fen Gar Hal Is Kel Lor Mar Nor Or Pel Ros Sal Tor Ul Ver"
)
PLACE_ENDS = _words(
  "aby anta burg dale endia eros ford gard haven ia ino ley mark mouth oria "
  "stad ton ville wick"
)
KINDS = _words(
  "classic cosmic electric folk gothic heroic ironic lyric modern mystic noir "
  "pastoral rustic satiric solar urban"
)
GROUNDS = _words("ballad crime dance drama fable march mystery poem quest saga")


# How each kind of name is composed: of one word of each list, and between them.
PATTERNS = {
  "person": (FIRST_NAMES, " ", LAST_NAMES),
  "title": (QUALITIES, " ", THINGS),
  "place": (PLACE_STARTS, "", PLACE_ENDS),
  "kind": (KINDS, " ", GROUNDS),
}
