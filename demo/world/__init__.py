"""A world that is known completely: composed emoji scenes, their boxes, and captions that speak of them."""
