"""Sentence templates of the captions, as data.

A template is text with fields in braces:

    {a} {b} {c} {d}      a mention ("two red balloons"); becomes a phrase with a span and boxes
    {the_a}              a second mention of the same objects ("the two red balloons")
    {ab} {cb} {ca} ...   a relation that holds in the picture, from the first to the second ("to the left of")
    {is_a} {it_a}        the verb and the pronoun that agree with {a}
    {at_a}               the position of {a} in the picture ("in the top left corner")
    {x}                  a concept that is absent from the picture; a phrase without boxes
    {z} {the_z}          an abstract noun; a phrase without boxes

A template is used only if all its relations are true. The templates avoid constructions that spaCy's noun chunker
misparses: "a key left of a dog" ("key left" becomes one noun), "a key standing on a box", "a piece of furniture", and
"just", "only" or "also" before an article. A comma precedes each new clause.
"""

RELATIONS: dict[str, tuple[str, ...]] = {
    "left": ("to the left of", "on the left of", "on the left side of"),
    "right": ("to the right of", "on the right of", "on the right side of"),
    "above": ("above", "over"),
    "below": ("below", "under", "beneath", "underneath"),
    "near": ("near", "next to", "beside", "close to", "by"),
    "far": ("far away from", "far from", "a long way from"),
    "in_front": ("in front of",),
    "behind": ("behind",),
    "on": ("on", "on top of"),
}

POSITIONS: dict[str, tuple[str, ...]] = {
    "top left": ("in the top left corner", "at the top left", "in the upper left corner"),
    "top": ("at the top", "near the top edge", "in the upper part"),
    "top right": ("in the top right corner", "at the top right", "in the upper right corner"),
    "left": ("on the left", "on the left side", "at the left edge"),
    "middle": ("in the middle", "in the center"),
    "right": ("on the right", "on the right side", "at the right edge"),
    "bottom left": ("in the bottom left corner", "at the bottom left", "in the lower left corner"),
    "bottom": ("at the bottom", "near the bottom edge", "in the lower part"),
    "bottom right": ("in the bottom right corner", "at the bottom right", "in the lower right corner"),
}

# Text before a noun phrase. Most captions on the web have none, so the empty opening has the largest share.
OPENINGS = (
    *[""] * 6,
    "a picture of ",
    "a photo of ",
    "an image of ",
    "a drawing of ",
    "an illustration of ",
    "a scene with ",
    "a view of ",
    "a picture with ",
    "this image shows ",
    "this picture shows ",
    "the image shows ",
    "we see ",
    "we can see ",
    "you can see ",
    "here we see ",
    "I see ",
    "look at ",
    "there {is_a} ",
    "there {is_a} ",
    "in this picture we see ",
    "in this image there {is_a} ",
    "there you can see ",
    "today I saw ",
    "someone has drawn ",
    "{the_z} of ",
)

# Noun phrases, used after an opening, by the number of mentions.
NOUN_PHRASES: dict[int, tuple[str, ...]] = {
    1: ("{a}", "{a}", "{a} {at_a}", "{a} that {is_a} {at_a}", "{a} {at_a} of the picture", "{a} alone"),
    2: (
        "{a} {ab} {b}",
        "{a} {ab} {b}",
        "{a} {ab} {b}",
        "{a} that {is_a} {ab} {b}",
        "{a} which {is_a} {ab} {b}",
        "{b} with {a} {ab} {it_b}",
        "{b} and {a} {ab} {it_b}",
        "{b}, with {a} {ab} {it_b}",
        "{a} {at_a} and {b} {at_b}",
        "{a} {at_a} and {b}",
        "{a} and {b}",
        "{a} with {b}",
        "{a} together with {b}",
        "{a} along with {b}",
        "{a} as well as {b}",
        "{a} {ab} {b} that {is_b} {at_b}",
    ),
    3: (
        "{a} {ab} {b} and {c}",
        "{a} {ab} {b}, and {c} {cb} {the_b}",
        "{a} {ab} {b}, and {c} {ca} {the_a}",
        "{a} {ab} {b} {bc} {c}",
        "{a} {ab} {b} that {is_b} {bc} {c}",
        "{a} {ab} {b} which {is_b} {bc} {c}",
        "{a} {ab} {b} with {c} {cb} {it_b}",
        "{b} with {a} {ab} {it_b} and {c} {cb} {it_b}",
        "{a}, {b} and {c}",
        "{a}, {b}, and {c}",
        "{a} and {b} with {c}",
        "{a} {ab} {b}, with {c} {at_c}",
        "{a} with {b} {ba} {it_a}, and {c}",
        "{c} and {a} {ab} {b}",
        "{a} {ab} {b}, plus {c}",
        "{a} {at_a}, {b} {at_b} and {c} {at_c}",
    ),
    4: (
        "{a} {ab} {b}, and {c} {cd} {d}",
        "{a}, {b}, {c} and {d}",
        "{a} {ab} {b}, {c} and {d}",
        "{a} {ab} {b} {bc} {c}, and {d}",
        "{a} with {b} {ba} {it_a}, and {c} with {d} {dc} {it_c}",
        "{a} {ab} {b} that {is_b} {bc} {c}, with {d}",
        "{a} and {b}, with {c} {cd} {d}",
        "{a} {ab} {b}, and {c} {ca} {the_a}, with {d}",
        "{a}, {b}, {c}, and {d} {at_d}",
    ),
}

# Full sentences, used without an opening, by the number of mentions.
SENTENCES: dict[int, tuple[str, ...]] = {
    1: ("{a} {is_a} {at_a}", "{at_a} of the picture there {is_a} {a}", "{at_a} we see {a}"),
    2: (
        "{a} {is_a} {ab} {b}",
        "{ab} {b} there {is_a} {a}",
        "{ab} {b} we see {a}",
        "there {is_b} {b}, and {ab} {it_b} there {is_a} {a}",
        "{a} {is_a} {at_a}, and {b} {is_b} {at_b}",
        "there {is_a} {a} {at_a} and {b} {at_b}",
        "{b} {is_b} here, and {a} {is_a} {ab} {it_b}",
    ),
    3: (
        "{a} {is_a} {ab} {b}, and {c} {is_c} {cb} {the_b}",
        "{a} {is_a} {ab} {b}. {c} {is_c} {cb} {the_b}",
        "there {is_a} {a} {ab} {b}. {ca} {the_a} we see {c}",
        "{ab} {b} there {is_a} {a}, and {cb} {the_b} there {is_c} {c}",
        "{a} {is_a} {ab} {b}, with {c} {cb} {it_b}",
        "there {is_a} {a} {ab} {b}, and there {is_c} also {c}",
        "we see {a} {ab} {b}. there {is_c} {c} as well",
        "{c} {is_c} {at_c}, and {a} {is_a} {ab} {b}",
    ),
    4: (
        "{a} {is_a} {ab} {b}, and {c} {is_c} {cd} {d}",
        "{a} {is_a} {ab} {b}. {c} {is_c} {cd} {d}",
        "there {is_a} {a} {ab} {b}. there {is_c} also {c} {cd} {d}",
        "we see {a}, {b}, {c} and {d}. {the_a} {is_a} {ab} {the_b}",
        "{ab} {b} there {is_a} {a}, and {cd} {d} there {is_c} {c}",
    ),
}

ABSENT_TAILS = (
    ", but no {x}",
    ", far away from {x}",
    ", without {x}",
    ", and no {x} in sight",
    ", as if waiting for {x}",
    ", instead of {x}",
    ", dreaming of {x}",
    ", far from {x}",
    ". there is no {x}",
    ". {x} is not in the picture",
    ", in search of {x}",
    ", looking for {x}",
    ", like in a story about {x}",
)

ABSTRACT_TAILS = (
    ", a symbol of {z}",
    ", full of {z}",
    ", with a sense of {z}",
    ", a moment of {z}",
    ", with a feeling of {z}",
    ", a sign of {z}",
    ", with a touch of {z}",
    ", a scene of {z}",
    ", a picture about {z}",
    ", in the spirit of {z}",
    ". it speaks of {z}",
    ", inspired by {z}",
)

TIME_TAILS = (
    " in the evening",
    " in the morning",
    " at night",
    " on a quiet day",
    " in the afternoon",
    " for a moment",
)

ABSTRACT_NOUNS = (
    "imagination", "freedom", "joy", "hope", "courage", "peace", "harmony", "nostalgia", "wonder", "friendship",
    "happiness", "curiosity", "creativity", "love", "wisdom", "patience", "innocence", "beauty", "balance",
    "solitude", "kindness", "progress", "luck", "ambition", "faith", "serenity",
)  # fmt: skip

# Size adjectives depend on the ratio of the slot's side to the canvas's shorter side.
SMALL, LARGE = 0.22, 0.46
SMALL_WORDS, LARGE_WORDS = ("small", "little", "tiny"), ("large", "big", "huge")

NUMBERS = {2: "two", 3: "three", 4: "four", 5: "five", 6: "six", 7: "seven", 8: "eight"}
