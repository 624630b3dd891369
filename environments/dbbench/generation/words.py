"""Words of generated tables.

They are few and short on purpose: a tokenizer of a thousand entries must cover
them, and a small policy must learn to copy them. Names are pairs of words, so
there are many different tables.
"""


def _words(text: str) -> tuple[str, ...]:
  return tuple(text.split())


FIRST_NAMES = _words(
  "Anna Ben Cara David Ella Frank Grace Henry Iris Jack Kate Leo Mia Noah "
  "Olga Paul Rosa Sam Tina Victor"
)
LAST_NAMES = _words(
  "Adams Baker Clark Davis Evans Fisher Gray Hill Jones King Lopez Moore "
  "Novak Owens Parker Reed Smith Turner Walker Young"
)
MODIFIERS = _words(
  "Blue Bold Calm Dark Fast Gold Grand Green High Iron Lucky North Old Quick "
  "Red Silver South Sunny White Wild"
)
THINGS = _words(
  "Bear Bridge Crown Eagle Falcon Forest Garden Harbor Lion Moon Mountain "
  "Ocean Palace River Star Storm Tiger Tower Valley Wolf"
)

CITIES = _words(
  "Berlin Boston Cairo Dallas Delhi Dublin Geneva Lima London Madrid Miami "
  "Milan Oslo Paris Prague Rome Seoul Sydney Tokyo Vienna"
)
COUNTRIES = _words(
  "Brazil Canada Chile China Egypt France Germany India Italy Japan Kenya "
  "Mexico Norway Peru Poland Spain Sweden Turkey"
)
COLORS = _words("black blue brown gray green orange pink purple red white")
DAYS = _words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
LEVELS = _words("junior senior expert beginner")
RESULTS = _words("won lost draw")
METHODS = _words("card cash check online")
SURFACES = _words("clay grass sand snow")

# The name of a table is a modifier and a subject.
TABLE_MODIFIERS = _words(
  "annual city club final former global home junior local main monthly "
  "national new old open public school senior spring summer top winter world"
)

# The subject of the rows: its key column, and the words of its names.
SUBJECTS = {
  "players": ("player", FIRST_NAMES, LAST_NAMES),
  "drivers": ("driver", FIRST_NAMES, LAST_NAMES),
  "writers": ("writer", FIRST_NAMES, LAST_NAMES),
  "students": ("student", FIRST_NAMES, LAST_NAMES),
  "teams": ("team", MODIFIERS, THINGS),
  "hotels": ("hotel", MODIFIERS, THINGS),
  "ships": ("ship", MODIFIERS, THINGS),
  "games": ("game", MODIFIERS, THINGS),
  "films": ("film", MODIFIERS, THINGS),
  "shops": ("shop", MODIFIERS, THINGS),
}
TEXT_COLUMNS = {
  "city": CITIES,
  "country": COUNTRIES,
  "color": COLORS,
  "day": DAYS,
  "level": LEVELS,
  "result": RESULTS,
  "payment": METHODS,
  "surface": SURFACES,
}
NUMBER_COLUMNS = _words(
  "points price score size weight length visits wins sales rooms votes years"
)
