"""The colour words that upstream's reward reduces an option to, in its order.

An option that contains one of them counts as that colour: "light blue" is
"blue". The order decides where several fit.
"""

_WORDS = """
  alabaster apricot aqua ash asphalt azure banana beige black blue blush
  bordeaux bronze brown burgundy camel camo caramel champagne charcoal cheetah
  chestnut chocolate christmas coffee cognac copper coral cranberry cream
  crystal dark denim eggplant elephant espresso fuchsia gold granite grape
  graphite grass gray green grey heather indigo ivory ivy khaki lavender lemon
  leopard light lilac lime magenta maroon mauve merlot midnight mint mocha
  multicolor mushroom mustard natural navy nude olive orange peach pewter pink
  plum purple rainbow red rose royal rust sand sapphire seashell silver skull
  slate steel stone stonewash sunflower tan taupe teal tiger turquoise violet
  walnut wheat white wine yellow
"""
COLOURS = tuple(_WORDS.split())


def reduce_to_colour(option: str) -> str:
  """The first colour whose letters occur in `option`, or `option` itself.

  Letters, not words: "standard" becomes "tan", for upstream too.
  """
  return next((colour for colour in COLOURS if colour in option), option)
