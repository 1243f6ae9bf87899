"""Spatial relations between the slots of a layout, limited to clear-cut cases."""

import math

from demo.world.layout import Slot, WorldConfig


def centre(slots: list[Slot]) -> tuple[float, float]:
    """Return the mean of the slots' centres in pixels, as (x, y)."""
    return sum(slot.cx for slot in slots) / len(slots), sum(slot.cy for slot in slots) / len(slots)


def gap(a: Slot, b: Slot) -> float:
    """Return the distance between two slots in pixels; 0 if they touch or overlap."""
    dx = max(a.x, b.x) - min(a.x + a.side, b.x + b.side)
    dy = max(a.y, b.y) - min(a.y + a.side, b.y + b.side)
    return math.hypot(max(dx, 0.0), max(dy, 0.0))


def relations(first: list[Slot], second: list[Slot], scene: list[Slot], config: WorldConfig) -> list[str]:
    """Return the relations from `first` to `second` that hold for all pairs of slots, as keys of `grammar.RELATIONS`.

    Left, right, above and below need a larger difference along their own axis than along the other one, and no slot
    may extend past the centre of a slot of the other group.
    """
    if len(first) == len(second) == 1:
        a, b = first[0], second[0]
        if a.contact and scene[a.contact.slot] is b:
            return ["on", "above"] if a.contact.relation == "on" else ["in_front"]
        if b.contact and scene[b.contact.slot] is a:
            return ["below"] if b.contact.relation == "on" else ["behind"]
    (ax, ay), (bx, by) = centre(first), centre(second)
    found = []
    if abs(ax - bx) > abs(ay - by):
        if all(a.x + a.side < b.cx and a.cx < b.x for a in first for b in second):
            found.append("left")
        elif all(b.x + b.side < a.cx and b.cx < a.x for a in first for b in second):
            found.append("right")
    elif all(a.y + a.side < b.cy and a.cy < b.y for a in first for b in second):
        found.append("above")
    elif all(b.y + b.side < a.cy and b.cy < a.y for a in first for b in second):
        found.append("below")
    if len(first) == len(second) == 1:
        short = min(config.width, config.height)
        if gap(a, b) < 0.08 * short and math.dist((ax, ay), (bx, by)) < 0.5 * short:
            found.append("near")
        elif gap(a, b) > 0.5 * short:
            found.append("far")
    return found


def position_of(slot: Slot, config: WorldConfig) -> str:
    """Return the cell of a 3 x 3 grid over the picture that contains the slot's centre; a key of `grammar.POSITIONS`."""
    column = ("left", "", "right")[min(int(3 * slot.cx / config.width), 2)]
    row = ("top", "", "bottom")[min(int(3 * slot.cy / config.height), 2)]
    return f"{row} {column}".strip() or "middle"
