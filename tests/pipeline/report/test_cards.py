from typing import Any

from pipeline.report.cards import MAX_BOXES, Picture, make_card
from pipeline.report.html import draw_tree, words_and_arcs
from tests.patience import linear_time

CAPTION = "a 🐈 cat on the left of a dog"


def chunk(text: str, removed: str | None = None) -> dict[str, Any]:
    start = CAPTION.index(text)
    return {"start": start, "end": start + len(text), "root": 0, "removed": removed}


def box(phrase: int, x_min: float, score: float) -> dict[str, Any]:
    return {"phrase": phrase, "x_min": x_min, "y_min": 0.5, "x_max": x_min + 0.25, "y_max": 0.75, "score": score}


def box_score(removed: str | None) -> dict[str, Any]:
    return {"area_px": 2000.0, "clip_cosine": None if removed else 0.3, "removed": removed}


def picture() -> Picture:
    """'a dog' has the best box; 'a 🐈 cat' has two, one of them removed; 'the left' was not grounded."""
    row: dict[str, Any] = {
        "key": "0",
        "caption": CAPTION,
        "noun_chunks": [chunk("a 🐈 cat"), chunk("the left", "relational"), chunk("a dog")],
        "has_expression": None,
        "ref_exps": [{"chunk": 0, "start": 0, "end": len(CAPTION), "is_maximal": True}],
        "boxes": [box(2, 0.5, 0.9), box(0, 0.0, 0.8), box(0, 0.1, 0.4)],
        "box_scores": [box_score(None), box_score(None), box_score("low_score")],
        "clip_similarity": 0.3,
        "tokens": None,
    }
    return Picture(row, b"", 200, 100)


def test_phrases_are_numbered_in_the_order_of_the_caption() -> None:
    card = make_card(picture())
    assert [(phrase.number, phrase.text) for phrase in card.phrases] == [(1, "a 🐈 cat"), (2, "a dog")]
    assert card.phrases[0].expression == CAPTION
    assert card.phrases[1].expression is None


def test_parts_form_the_caption_and_mark_its_phrases() -> None:
    parts = make_card(picture()).parts
    assert "".join(part.text for part in parts) == CAPTION
    marked = [(part.text, part.number, part.removed) for part in parts if part.number or part.removed]
    assert marked == [("a 🐈 cat", 1, None), ("the left", None, "relational"), ("a dog", 2, None)]


def test_box_fractions_become_pixels_of_the_thumbnail() -> None:
    first, second = make_card(picture()).boxes
    assert (first.number, first.x, first.y, first.width, first.height) == (1, 0, 50, 50, 25)
    assert (second.number, second.x) == (2, 100)


def test_removed_box_is_listed_but_not_drawn() -> None:
    card = make_card(picture())
    assert len(card.boxes) == 2
    assert card.removed == [("a 🐈 cat", "low_score", 1)]


def test_numbers_of_boxes_at_the_same_position_do_not_overlap() -> None:
    shown = picture()
    shown.row["boxes"][0] |= {"x_min": 0.0, "x_max": 0.25}
    first, second = make_card(shown).boxes
    assert abs(first.tag_x - second.tag_x) > 15


def test_chunk_inside_another_is_not_marked_twice() -> None:
    shown = picture()
    shown.row["noun_chunks"][1] = chunk("cat", "abstract")
    parts = make_card(shown).parts
    assert "".join(part.text for part in parts) == CAPTION


def test_tree_has_an_arc_to_each_word_except_the_root() -> None:
    row = picture().row
    words = [("a", 2, "det"), ("🐈", 2, "nmod"), ("cat", 2, "ROOT")]
    row["tokens"] = [
        {
            "start": CAPTION.index(w),
            "end": CAPTION.index(w) + len(w),
            "head": h,
            "dep": d,
            "pos": "X<",
            "tag": "",
            "lemma": "",
        }
        for w, h, d in words
    ]
    drawn, arcs = words_and_arcs(row)
    assert [word["text"] for word in drawn] == ["a", "🐈", "cat"]
    assert [(arc["start"], arc["end"], arc["label"], arc["dir"]) for arc in arcs] == [
        (0, 2, "det", "left"),
        (1, 2, "nmod", "left"),
    ]
    svg = draw_tree(row, 7)
    assert 'id="tree-7"' in svg
    assert "X&lt;" in svg


def test_card_with_many_boxes_at_one_corner_shows_the_best_in_bounded_time() -> None:
    many = picture()
    many.row["boxes"] = [box(0, 0.0, 0.9 - i / 100_000) for i in range(20_000)]
    many.row["box_scores"] = [box_score(None)] * 20_000
    with linear_time():
        card = make_card(many)
    assert (len(card.boxes), card.n_hidden) == (MAX_BOXES, 20_000 - MAX_BOXES)
    assert min(score for score, _ in card.phrases[0].scores) > 0.89
