"""Word lists that decide which noun chunks are grounded, as lemmas in lower case.

GRIT (Kosmos-2, arXiv 2306.14824, section 2.1) and HyCoCLIP (appendix A) remove abstract nouns, but publish only a few
examples. These lists are our own.
"""

from typing import Final


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


ABSTRACT: Final = _words(
    """
    ability absence access accident action addition admiration advantage adventure advice affection afternoon age aim
    amount anger answer anxiety approach aspect attempt attention attitude autumn awe balance battle beauty beginning
    behavior behaviour belief bit bliss bravery care case cause century chance change chaos charm choice circumstance
    clarity comfort comparison compassion concept concern condition confidence contrast control courage creation
    culture curiosity danger darkness date dawn day deal death decade decision degree delight democracy depression
    desire despair detail development difference difficulty direction discovery discussion dream dusk duty ease
    economy education effect effort elegance emotion end energy entertainment envy era essence eternity evening event
    evil evolution example excellence excitement existence experience expression fact failure faith fame fashion fate
    favor favour fear feature feeling fortune freedom friendship fun future generation glory good grace gratitude
    greatness greed grief growth guilt happiness harmony hate hatred health help history holiday honesty honor honour
    hope hour idea imagination importance impression independence influence information innocence inspiration instance
    intelligence interest issue jealousy journey joy joyfulness justice kind kindness knowledge lack language law
    length level liberty life lifestyle logic loss lot love loyalty luck magic majority manner matter meaning means
    memory mercy method midnight mind minute misery mix mixture moment mood month morning motion music mystery nature
    need night noon nostalgia number opinion opportunity option order pain past patience peace perfection period
    permission perspective philosophy place pleasure plenty point policy politics possibility poverty power present
    pride principle privacy problem process progress promise purpose quality quantity question reality reason relation
    relationship relief religion respect responsibility result revenge rhythm right risk romance sadness safety sake
    science search season second security sense serenity shame sight significance silence simplicity situation size
    skill sleep solitude solution sorrow sort soul sound space speed spirit spring standard state status step story
    strength stress style success summer surprise symbol sympathy technology tenderness tension term theme theory
    thought time today tomorrow tonight topic touch tradition tranquility trouble trust truth type unity use value
    variety version victory view virtue vision warmth way weather week weekend will winter wisdom wish wonder work
    world worry year yesterday youth
    """
)
"""Nouns that name nothing visible."""
RELATIONAL: Final = _words(
    """
    angle back background beneath bottom center centre close-up closeup corner direction distance drawing edge end
    foreground front half illustration image inside left middle outside painting part photo photograph photography pic
    picture portion portrait rear rendering right scene screenshot section shot side sketch snapshot surroundings
    thumbnail top view wallpaper
    """
)
"""Nouns that name a position in the picture or the picture itself."""
CONCRETE: Final = _words(
    """
    harness witness lioness governess wilderness baroness fortress city university cavity deity celebrity facility
    community charity amenity nativity prism organism mechanism ship airship battleship flagship gunship spaceship
    starship steamship warship township hood neighborhood neighbourhood robinhood apartment armament attachment
    basement battlement casement cement compartment department document easement element embankment equipment
    escarpment establishment filament fragment garment implement instrument ligament monument ornament parchment
    pavement pigment regiment sediment segment settlement supplement tenement vestment kingdom condom stadium
    """
)
"""Nouns that name something visible although they end in one of `parse.abstract_suffixes`."""
SIGNS: Final = frozenset({"sign", "mark", "trace", "hint", "glimpse", "symbol"})
"""Nouns that are abstract only before "of": "a sign of hope" is abstract, "a stop sign" is not."""
