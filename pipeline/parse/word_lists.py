"""Word lists that decide which noun chunks are grounded, as lemmas in lower case.

GRIT (Kosmos-2, arXiv 2306.14824, section 2.1) and HyCoCLIP (appendix A) remove abstract nouns, but publish only a few
examples. These lists are our own.
"""

from pathlib import Path
from typing import Final


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


ABSTRACT: Final = _words(
    """
    ability absence access accident action addition admiration advantage adventure advice affection afternoon age
    aim amount anger answer anxiety approach aspect attempt attention attitude autumn award awe balance battle
    beauty beginning behavior behaviour belief bit bliss boredom bravery care cause century ceremony championship
    chance change chaos choice circumstance clarity comfort comparison compassion concept concern condition
    confidence contrast copyright courage courtesy creation credit culture curiosity danger darkness date dawn day
    deal death decade decision degree delight democracy depression desire despair detail development difference
    difficulty direction discovery discussion dream dusk duty ease economy education effect effort elegance emotion
    end energy entertainment envy era essence eternity evening event evil evolution example excellence excitement
    existence experience expression fact failure faith fame fashion fate favor favour fear feature feeling fortune
    freedom friendship fun future game generation glory grace gratitude greatness greed grief growth guilt happiness
    harmony hate hatred health help history holiday honesty honor honour hope hour idea imagination importance
    impression independence influence information innocence inspiration instance intelligence interest issue
    jealousy journey joy joyfulness justice kind kindness knowledge lack language law length level liberty life
    lifestyle logic loss lot love loyalty luck magic majority manner match matter meaning means memory mercy method
    midnight mind minute misery mix mixture moment month mood morning motion music mystery nature need night noon
    nostalgia number opinion opportunity option order pain past patience peace perfection performance period
    permission perspective philosophy place pleasure plenty point policy politics possibility poverty power pride
    principle privacy problem process progress promise purpose quality quantity question reality reason recipe
    relation relationship relief religion respect responsibility result revenge rhythm right risk robbery romance
    sadness safety sake sale science search season second security sense serenity shame shipping sight significance
    silence simplicity situation size skill sleep solitude solution sorrow sort soul sound space speed spirit spring
    standard stardom state status story strength stress style success summer surprise symbol sympathy technology
    tenderness tension term theme theory thought time today tomorrow tonight topic touch tradition tranquility
    trouble trust truth type unity use value variety version victory view virtue vision warmth way weather week
    weekend will winter wisdom wish wonder work world worry year yesterday
    """
)
"""Nouns that name nothing visible."""
RELATIONAL: Final = _words(
    """
    angle back background beneath bottom center centre close-up closeup corner direction distance drawing edge end
    foreground front half illustration image inside left middle outside painting part photo photograph photography
    pic picture portion portrait rear rendering right scene screenshot section shot side sketch snapshot
    surroundings thumbnail top view wallpaper
    """
)
"""Nouns that name a position in the picture or the picture itself."""
CONCRETE: Final = _words(
    """
    advertisement airship amenity apartment armament arrangement attachment baroness basement battlement battleship
    casement cavity celebrity cement charity city community compartment condom dealership deity department document
    easement element embankment equipment escarpment establishment facility filament flagship fortress fragment
    garment governess gunship harness hood implement instrument kingdom ligament lioness mechanism monument nativity
    neighborhood neighbourhood organism ornament parchment pavement pigment prism regiment robinhood sediment
    segment settlement ship spaceship stadium starship steamship supplement tenement township university vestment
    warship wilderness witness
    """
)
"""Nouns that name something visible although they end in one of `parse.abstract_suffixes`."""
SIGNS: Final = frozenset({"sign", "mark", "trace", "hint", "glimpse", "symbol"})
"""Nouns that are abstract only before "of": "a sign of hope" is abstract, "a stop sign" is not."""

CALENDAR: Final = _words(
    """
    april august december february friday january july june monday november october saturday september sunday
    thursday tuesday wednesday
    """
)
"""Names of months and days; March and May only where they are proper nouns."""
AGENCIES: Final = _words(
    """
    afp alamy ap bloomberg dreamstime epa etsy flickr freepik getty instagram istock istockphoto nasa pinterest
    pixabay reuters shutterstock unsplash wikimedia wikipedia youtube
    """
)
"""Agencies and sites that captions credit."""
CREDITS: Final = _words(
    """
    artwork copyright courtesy credit credits design graphic illustration image photo photograph photographer
    photography photos picture render rendering source styling video
    """
)
"""Nouns before the name of an author or owner ("Photo by Jane Roe", "Source: Jane Roe")."""
PARTS: Final = _words("back bottom center centre corner edge end front middle part section side top")
"""Relational nouns that name a part of an object in "the side of a boat"."""
BODY: Final = _words("back side")
"""Relational nouns that name a part of the body after a possessive."""
GARMENTS: Final = _words("top bottom")
"""Relational nouns that name clothes after an adjective or noun: "a white top", "a tank top"."""
POSITIONS: Final = _words("left right upper lower top bottom very far middle center centre")
"""Modifiers after which they name positions: "the upper left corner"."""
DEPICTIONS: Final = _words(
    """
    clipart illustration image photo photograph photography pic picture screenshot snapshot wallpaper
    """
)
"""Nouns that name the picture itself after the noun that it shows: "skyline photo"."""
PICTURES: Final = DEPICTIONS | _words("drawing painting portrait sketch rendering")
"""Relational nouns that can also be objects within the picture: "a painting on the wall"."""
ATTACHED: Final = _words("adorn attach decorate frame glue hang mount pin stick tape")
"""Verbs of pictures that are objects: "a painting hangs above a fireplace"."""
STANDING: Final = _words("be lean lie rest sit stand")
"""Verbs of pictures that are objects if a place follows: "a framed picture is on the wall"."""
PLACES: Final = frozenset({"on", "above", "over", "against", "behind", "beside", "near", "under", "next"})
SURFACES: Final = _words(
    """
    bed board cabinet ceiling counter desk door dresser easel fireplace fridge mantel mantelpiece nightstand piano
    refrigerator shelf sofa stand table wall windowsill
    """
)
"""Nouns on which a picture is an object: "a photo on the wall", but not "a photo on a beach"."""
DEPICTION_MODIFIERS: Final = _words(
    """
    aerial background clip cover credit desktop drone family file group hd nature news press product profile
    reference royalty stock travel vector vintage wedding
    """
)
"""Modifiers of DEPICTIONS that they do not show."""
COLLECTIVES: Final = _words(
    """
    array assortment bag ball band basket batch bed bit block body bottle bouquet bowl box bucket bunch bundle can
    carton chunk class cloud cluster collection column couple crate crew crowd cup deck display dozen family fleet
    flight flock gaggle gang glass glob group half handful heap herd hundred jar jug kind layer line litter load
    loaf lot mass mound mug multitude number pack package pair pan patch piece pile pitcher plate platter pot pride
    puddle queue range roll row school selection series set sheet shot slice sort spoonful spread stack stick strand
    string strip swarm tank team thousand ton trail tray trio troop tub tube type variety wad wall wedge
    """
)
"""Nouns of quantity, arrangement and container, which form one phrase with "of" and the noun after it."""
PARTITIVES: Final = _words(
    """
    all any both dozens each eight few five four half hundreds lots many most nine none one plenty seven several six
    some ten thousands three tons two
    """
)
"""Words that form one phrase with "of" and the phrase after it: "two of the dogs"."""
QUANTITIES: Final = _words(
    "bunch children couple dozen few hundred lot many men million news pair people series thousand women"
)
"""Words that allow a plural after them although "a" or "an" is in front: "a few dogs"."""
PLURAL_WORDS: Final = QUANTITIES | _words(
    """
    binoculars boxers bus chess christmas clothes cross dress glass glasses goggles grass headphones jeans leggings
    pajamas pants pliers scissors shorts species sunglasses swiss tennis tights trousers tweezers
    """
)
"""Words after "a" or "an" and a noun that are no verbs: plurals of one thing, and singulars in "s"."""
PLURAL_MODIFIERS: Final = _words(
    """
    accessories arts cards communications crafts games goods greens operations parts sales savings services sports
    stairs supplies systems treats
    """
)
"""Plurals that modify the noun after them: "a video games console"."""
NAME_VERBS: Final = _words(
    """
    addresses attends beats celebrates congratulates defeats embraces greets hugs joins kisses meets performs scores
    speaks thanks visits wears welcomes
    """
)
"""Verbs that small models take for nouns after a name: "Modi hugs Trump". After other nouns they may be nouns."""
ING_NOUNS: Final = _words(
    """
    awning bedding being blessing bowling boxing building camping carving ceiling clearing clothing coating cooking
    covering crossing curling cycling dining drawing dressing duckling dumpling earring engraving evening fencing
    filling fishing flooring frosting frying gathering hiking icing king knitting landing lettering lighting
    lightning lining listing living marking meeting morning netting offering opening outing packaging painting
    parking paving piercing pudding racing railing riding ring roofing sapling seating setting shavings shelving
    shopping sibling siding sing skateboarding skating skiing sling snowboarding spring sting stocking string
    stuffing surfing swelling swimming swing thing topping training upholstery viking wedding wing wiring wrapping
    writing
    """
)
"""Nouns that end in "ing"; after another noun, all other words with this ending are verbs ("a zebra standing")."""
ANIMATE: Final = _words(Path(__file__).with_name("animate.txt").read_text(encoding="utf-8"))
"""People and animals, which describe nothing as second conjunct of a thing: "a dog with a ball and a cat".

Words that often name a thing in captions are left out, such as mouse, bat and crane.
"""
ALWAYS_NOUNS: Final = _words("hydrant hydrants skateboard snowboard surfboard frisbee toothbrush")
"""Nouns that small models often take for something else; after a noun chunk they are its head."""
COMPOUND_OBJECTS: Final = _words("game lot number place space work")
"""Abstract nouns that name an object after another noun: "parking lot"."""
OBJECTS_BEFORE_OF: Final = frozenset({"game"})
"""Abstract nouns that name something visible before "of": "a game of frisbee"."""
