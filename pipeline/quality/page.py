"""The page on which people mark boxes: one file with its pictures, which a browser opens from disk."""

import base64
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from common.html import render_page
from pipeline.quality.marks import COLUMNS, form_row
from pipeline.quality.sample import Question

TEMPLATES: Final = Path(__file__).resolve().parent


def render(questions: Sequence[Question], output: str) -> str:
    """Return the page as HTML. Captions and phrases are escaped; the marks are saved in the browser's storage."""
    pictures: dict[str, str] = {}
    cards, rows = [], [form_row(question.candidate) for question in questions]
    for question in questions:
        row, box = question.candidate.row, question.candidate.box
        pictures[row.key] = "data:image/jpeg;base64," + base64.b64encode(question.jpeg).decode()
        x0, y0, x1, y1 = box.corners
        cards.append(
            {
                "key": row.key,
                "parts": (row.caption[: box.start], row.phrase(box), row.caption[box.end :]),
                "width": question.width,
                "height": question.height,
                "x": x0 * question.width,
                "y": y0 * question.height,
                "w": (x1 - x0) * question.width,
                "h": (y1 - y0) * question.height,
            }
        )
    identity = hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:16]
    return render_page(
        TEMPLATES,
        "audit.html",
        output=output,
        cards=cards,
        pictures=pictures,
        data={"columns": COLUMNS, "rows": rows, "identity": identity},
    )
