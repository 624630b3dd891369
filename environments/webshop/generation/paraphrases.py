"""Attributes in a customer's words: what a title says, said in another way.

Each clause follows "that": "a shirt that can go in the laundry". No word of a
clause stands in any listing, so that a search for the customer's words finds
none of the attribute; a test keeps it so.
"""

from collections.abc import Mapping

PARAPHRASES: Mapping[str, tuple[str, str]] = {
  # Clothing, shoes and jewelry
  "machine wash": ("can go in the laundry", "needs no scrubbing"),
  "slim fit": ("hugs my figure", "must not be baggy"),
  "long sleeve": ("covers both arms", "reaches my wrists"),
  "quick drying": ("will not stay damp", "needs no hours on a clothesline"),
  "cotton lining": ("must be cosy within", "has a soft inside"),
  "rubber sole": ("will not slide on wet ground", "grips the floor below me"),
  "elastic waist": ("stretches around my belly", "gives way after dinner"),
  "moisture wicking": ("keeps sweat away", "helps when i perspire"),
  "faux fur": ("must be fluffy as a bear", "looks like an animal"),
  "high waist": ("covers my navel", "comes up to my ribs"),
  "hand stitched": ("was sewn without machinery", "a tailor sewed"),
  "wool blend": ("comes partly from sheep", "must be part fleece"),
  "memory foam": ("remembers my shape", "molds itself to me"),
  "zipper pocket": ("keeps coins from falling", "closes over my keys"),
  # Beauty
  "cruelty free": ("no rabbit suffered for", "harms no animals"),
  "long lasting": ("will endure all day", "needs no second coat"),
  "paraben free": ("has no harsh preservatives", "must be kept fresh gently"),
  "sensitive skin": ("will not irritate me", "must be mild"),
  "natural oils": ("comes from pressed seeds", "has nothing synthetic"),
  "travel sized": ("may come on an airplane", "must be tiny enough for trips"),
  "anti aging": ("fights wrinkles", "makes me look younger"),
  "deep cleansing": ("gets every bit of dirt away", "gets into pores"),
  "aloe vera": ("has a desert succulent", "cools a sunburn"),
  "clinically tested": ("doctors have tried", "has medical evidence"),
  "vitamin rich": ("nourishes me", "has many nutrients"),
  "sulfate removed": ("hardly bubbles", "spares me harsh suds"),
  # Electronics
  "fast charging": ("fills its battery in minutes", "must be ready soon"),
  "noise cancelling": ("keeps chatter away", "must be good in loud trains"),
  "easy install": ("a beginner gets going", "must be simple at setup"),
  "water resistant": ("survives rain", "may get splashed"),
  "plug play": ("needs no driver software", "works at once"),
  "stereo sound": ("has left and right channels", "must use two channels"),
  "touch screen": ("obeys my fingers", "must react when tapped"),
  "gold plated": ("has precious metal contacts", "will never corrode"),
  "heavy duty": ("takes rough treatment", "must be robust"),
  "carbon fiber": ("must be light yet stiff", "uses racing material"),
  "night vision": ("sees in darkness", "works after sunset"),
  "hands operated": ("has manual controls", "must use knobs"),
  # Home
  "easy assemble": ("goes together without tools", "i can build alone"),
  "space saving": ("must be compact", "suits a tiny room"),
  "solid wood": ("comes from real trees", "is timber throughout"),
  "stainless steel": ("will not rust", "is shiny metal"),
  "eco friendly": ("is kind to forests", "is good for our planet"),
  "dishwasher proof": ("an appliance may clean", "i need not rinse myself"),
  "hand painted": ("an artist decorated", "shows brushwork"),
  "non slip": ("must stay where i put it", "will not slide around"),
  "storage drawers": ("has room for my stuff", "must hold many things"),
  "high density": ("is firm", "will not sag"),
  "fade resistant": ("keeps its look in sunshine", "will not bleach"),
  "double sided": ("i can turn over", "is reversible"),
  # Grocery
  "gluten free": ("suits celiacs", "has nothing from barley or rye"),
  "low sodium": ("suits weak hearts", "is good for blood pressure"),
  "usda organic": ("grew without pesticides", "has a government seal"),
  "nut reduced": ("is safer with allergies", "my allergic son may try"),
  "sugar cut": ("is not so sweet", "suits diabetics"),
  "plant based": ("suits vegans", "has nothing from animals"),
  "shelf stable": ("needs no fridge", "keeps for years"),
  "keto diet": ("has hardly any carbs", "must be mostly fat"),
  "whole grain": ("has bran and germ", "has plenty of fibre"),
  "hand picked": ("was harvested without machinery", "people chose"),
  "slow roasted": ("was many hours above gentle heat", "took hours in an oven"),
  "individually wrapped": ("comes in single portions", "is packed one by one"),
}
