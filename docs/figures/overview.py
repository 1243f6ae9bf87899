"""The picture at the top of README.md.

The parse, the boxes and the training sample are results of the pipeline for one scene of the demo's world. The points in
hyperbolic space are only an illustration.
"""

import io
import json
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
import numpy as np
import PIL.Image
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Arc, Circle, FancyArrowPatch, FancyBboxPatch, Rectangle

from demo.train_demo_data import add_member
from demo.world.scenes import make_scene
from pipeline import load_config, plan_shards, run_local
from pipeline.run.provenance import make_provenance

SEED = 9_000_007
CAPTION = "a parrot is beside a brown kite"
"""In place of the generated caption of the scene, which is longer."""
COLOURS = ("#d1495b", "#00798c", "#b8860b", "#5b4b8a")
INK, GREY, PALE = "#1f2933", "#7b8794", "#f4f6f8"
MONO: dict[str, Any] = {"family": "DejaVu Sans Mono"}


def grounded_sample(folder: Path) -> dict[str, Any]:
    """Return the training sample that the pipeline writes for the scene, as members by name; JSON is decoded."""
    scene = make_scene(SEED, "openmoji")
    with tarfile.open(folder / "input.tar", "w") as tar:
        encoded = io.BytesIO()
        PIL.Image.fromarray(scene.image).save(encoded, "PNG")
        add_member(tar, "0.png", encoded.getvalue())
        add_member(tar, "0.txt", CAPTION.encode())
    config = load_config([f"input={folder / 'input.tar'}", f"output={folder / 'out'}", "download.resize.mode=none"])
    plans = plan_shards(config.input, config.rows_per_shard, config.limit, config.read)
    list(run_local(plans, config, make_provenance(config)))
    with tarfile.open(folder / "out" / "train" / "00000.tar") as tar:
        files = {member.name.partition(".")[2]: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]
    return {**files, "json": json.loads(files["json"]), "scene": scene.image}


def picture(data: bytes) -> np.ndarray[Any, Any]:
    return np.asarray(PIL.Image.open(io.BytesIO(data)).convert("RGB"))


def blank(axes: Axes) -> None:
    """Hide the axes and set coordinates from 0 to 1."""
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    axes.axis("off")


def title(figure: Figure, number: int, text: str, x: float, y: float) -> None:
    """Draw the numbered title of a panel at figure coordinates."""
    figure.text(x, y, f"{number}", fontsize=14, color="white", weight="bold", va="center", ha="center",
                bbox={"boxstyle": "circle,pad=0.25", "fc": INK, "ec": INK})  # fmt: skip
    figure.text(x + 0.014, y, text, fontsize=14.5, color=INK, weight="bold", va="center")


def draw_parse(axes: Axes, facts: dict[str, Any], colours: dict[int, str]) -> None:
    """Draw the caption, with its dependency tree above the words and its noun chunks below them."""
    blank(axes)
    caption, tokens = facts["caption"], facts["tokens"]
    words = [caption[token["start"] : token["end"]] for token in tokens]
    widths = [len(word) + 1.0 for word in words]
    scale = 1.0 / sum(widths)
    centres, left = [], 0.0
    for width in widths:
        centres.append((left + width / 2) * scale)
        left += width
    base = 0.30
    for word, x in zip(words, centres, strict=True):
        axes.text(x, base, word, ha="center", va="center", fontsize=17, color=INK)
    for i, token in enumerate(tokens):
        head = token["head"]
        if head == i:
            axes.text(centres[i], base - 0.135, "root", ha="center", va="center", fontsize=9.5, color=GREY)
            continue
        a, b = sorted((centres[i], centres[head]))
        height = min(0.10 + 0.085 * abs(i - head), 0.50) + (0.07 if abs(i - head) > 14 else 0)
        axes.add_patch(Arc(((a + b) / 2, base + 0.07), b - a, 2 * height, theta1=0, theta2=180, ec="#9aa5b1", lw=1.1))
        axes.plot(centres[i], base + 0.075, "v", color="#9aa5b1", ms=5)
        if abs(i - head) > 1 or b - a > 0.055:
            axes.text((a + b) / 2, base + 0.07 + height, token["dep"], ha="center", va="center", fontsize=8.5, color=GREY,
                      bbox={"fc": "white", "ec": "none", "pad": 0.6})  # fmt: skip
    for n, chunk in enumerate(facts["noun_chunks"]):
        inside = [i for i, t in enumerate(tokens) if chunk["start"] <= t["start"] and t["end"] <= chunk["end"]]
        first, last = inside[0], inside[-1]
        a = centres[first] - widths[first] * scale / 2 + 0.004
        b = centres[last] + widths[last] * scale / 2 - 0.004
        colour = colours.get(n, "#9aa5b1")
        axes.add_patch(Rectangle((a, base - 0.105), b - a, 0.022, fc=colour, ec="none"))
        label = {None: "grounded" if n in colours else "no box found", "pronoun": "pronoun"}.get(
            chunk["removed"], "not an object"
        )
        axes.text((a + b) / 2, base - 0.165, label, ha="center", fontsize=9.5, color=colour)


def draw_boxes(axes: Axes, sample: dict[str, Any], colours: dict[int, str]) -> None:
    """Draw the image with its kept boxes."""
    blank(axes)
    facts = sample["json"]
    image = sample["scene"]
    axes.set_aspect("equal")
    axes.imshow(image, extent=(0, 1, 0, 1), interpolation="lanczos", zorder=0)
    axes.set_xlim(-0.01, 1.01)
    axes.set_ylim(-0.01, 1.01)
    for box in facts["boxes"]:
        x, y = box["x_min"], 1 - box["y_max"]
        width, height = box["x_max"] - box["x_min"], box["y_max"] - box["y_min"]
        colour = colours[box["phrase"]]
        chunk = facts["noun_chunks"][box["phrase"]]
        axes.add_patch(Rectangle((x, y), width, height, fill=False, ec=colour, lw=3))
        above = y + height < 0.85
        axes.text(x, y + height + 0.012 if above else y - 0.02, f"{facts['caption'][chunk['start'] : chunk['end']]}  {box['score']:.2f}",
                  fontsize=11, color="white", va="bottom" if above else "top", bbox={"fc": colour, "ec": colour, "pad": 2.2})  # fmt: skip


def draw_sample(axes: Axes, sample: dict[str, Any], colours: dict[int, str]) -> None:
    """Draw the members of the training sample."""
    blank(axes)
    axes.add_patch(
        FancyBboxPatch((0.0, 0.0), 1.0, 0.965, boxstyle="round,pad=0,rounding_size=0.02", fc=PALE, ec="#d9e2ec")
    )
    figure = axes.get_figure(root=True)
    assert figure is not None
    facts = sample["json"]
    rows = [("child", sample["child.jpg"], sample["child.txt"].decode(), INK)]
    for i, parent in enumerate(facts["parents"]):
        name = f"parent{i:03d}"
        colour = colours[facts["boxes"][parent["box"]]["phrase"]]
        rows.append((name, sample[f"{name}.jpg"], sample[f"{name}.txt"].decode(), colour))
    rows = rows[:4]
    height = 0.80 / len(rows)
    for i, (name, image, text, colour) in enumerate(rows):
        top = 0.93 - i * height
        side = height * 0.84
        bounds = axes.get_position()
        inset = figure.add_axes((
            bounds.x0 + 0.03 * bounds.width, bounds.y0 + (top - side) * bounds.height,
            side * bounds.height * figure.get_figheight() / figure.get_figwidth(), side * bounds.height,
        ))  # fmt: skip
        inset.imshow(picture(image))
        inset.set_xticks([])
        inset.set_yticks([])
        for spine in inset.spines.values():
            spine.set_color(colour)
            spine.set_linewidth(2.2)
        x = 0.07 + side * bounds.height * figure.get_figheight() / (figure.get_figwidth() * bounds.width)
        axes.text(x, top - 0.03, f"{name}.jpg  {name}.txt", fontsize=8, color=colour, va="center", **MONO)
        axes.text(x, top - 0.062, wrapped(text, 26), fontsize=10.5, color=INK, va="top")
    axes.text(0.04, 0.065, "json", fontsize=10.5, color=INK, va="center", **MONO)
    axes.text(0.17, 0.065, "boxes, scores, parse, provenance", fontsize=10, color=GREY, va="center")


def wrapped(text: str, width: int) -> str:
    import textwrap

    return "\n".join(textwrap.wrap(text, width)[:3])


def draw_space(axes: Axes, sample: dict[str, Any], colours: dict[int, str]) -> None:
    """Draw hyperbolic space: general phrases near the root, specific images farther out, inside the phrases' cones."""
    blank(axes)
    axes.set_aspect("equal")
    axes.set_xlim(-1.06, 1.06)
    axes.set_ylim(-1.06, 1.06)
    axes.add_patch(Circle((0, 0), 1.0, fc="#fbfcfd", ec="#cbd2d9", lw=1.5))
    for radius in (0.35, 0.65):
        axes.add_patch(Circle((0, 0), radius, fill=False, ec="#e4e7eb", lw=1))
    first, second = COLOURS[0], COLOURS[1]
    points = {
        "phrase 1": (2.30, 0.34, first),
        "box 1": (2.15, 0.58, first),
        "phrase 2": (0.84, 0.34, second),
        "box 2": (0.99, 0.58, second),
        "caption": (1.50, 0.62, INK),
        "image": (1.57, 0.87, INK),
    }
    at = {name: (r * np.cos(angle), r * np.sin(angle)) for name, (angle, r, _) in points.items()}
    for apex, colour, spread in (("phrase 1", first, 70), ("phrase 2", second, 70)):
        angle = points[apex][0]
        edge = [
            (np.cos(angle + s), np.sin(angle + s)) for s in np.linspace(-np.radians(spread), np.radians(spread), 40)
        ]
        axes.fill(
            [at[apex][0], *(x for x, _ in edge)], [at[apex][1], *(y for _, y in edge)], color=colour, alpha=0.13, lw=0
        )
    for general, specific in (("phrase 1", "box 1"), ("phrase 2", "box 2"), ("phrase 1", "caption"), ("phrase 2", "caption"),
                              ("box 1", "image"), ("box 2", "image"), ("caption", "image")):  # fmt: skip
        axes.add_patch(FancyArrowPatch(at[general], at[specific], arrowstyle="-|>", mutation_scale=11, lw=1.2, color=GREY,
                                       shrinkA=5, shrinkB=6))  # fmt: skip
    labels = {"phrase 1": ("right", -0.05, 0.0), "box 1": ("right", -0.05, 0.03), "phrase 2": ("left", 0.05, 0.0),
              "box 2": ("left", 0.06, 0.03), "caption": ("left", 0.07, 0.0), "image": ("left", 0.07, 0.02)}  # fmt: skip
    facts = sample["json"]
    names = {i: facts["caption"][c["start"] : c["end"]] for i, c in enumerate(facts["noun_chunks"]) if i in colours}
    texts = dict(zip(("phrase 1", "phrase 2"), (f"“{name}”" for name in names.values()), strict=False))
    for name, (x, y) in at.items():
        axes.plot(x, y, "o", color=points[name][2], ms=8, zorder=5)
        side, dx, dy = labels[name]
        text = texts.get(
            name, {"box 1": "its box", "box 2": "its box", "caption": "caption", "image": "image"}.get(name, name)
        )
        axes.text(x + dx, y + dy, text, ha=side, va="center", fontsize=10.5, color=points[name][2])
    axes.plot(0, 0, "x", color=INK, ms=7)
    axes.text(0, -0.09, "root", ha="center", fontsize=10.5, color=INK)
    axes.text(0, -0.50, "general", ha="center", fontsize=10, color=GREY)
    axes.text(0, -0.86, "specific", ha="center", fontsize=10, color=GREY)
    axes.add_patch(FancyArrowPatch((0, -0.55), (0, -0.80), arrowstyle="-|>", mutation_scale=10, lw=1, color=GREY))


def draw(target: Path) -> None:
    """Run the pipeline on the scene and draw the picture."""
    with tempfile.TemporaryDirectory() as folder:
        sample = grounded_sample(Path(folder))
    facts = sample["json"]
    phrases = list(dict.fromkeys(facts["boxes"][parent["box"]]["phrase"] for parent in facts["parents"]))
    colours = dict(zip(sorted(phrases), COLOURS, strict=False))
    figure = plt.figure(figsize=(16, 9.0), dpi=110, facecolor="white")
    title(figure, 1, "A caption is parsed: dependency tree and noun chunks", 0.035, 0.955)
    draw_parse(figure.add_axes((0.08, 0.645, 0.84, 0.30)), facts, colours)
    y, height = 0.03, 0.55
    title(figure, 2, "Its phrases become boxes", 0.035, 0.62)
    draw_boxes(figure.add_axes((0.03, y, 0.309, height)), sample, colours)
    title(figure, 3, "One sample of a training shard", 0.395, 0.62)
    draw_sample(figure.add_axes((0.385, y, 0.255, height + 0.012)), sample, colours)
    title(figure, 4, "Models learn generality (illustration)", 0.69, 0.62)
    draw_space(figure.add_axes((0.68, y, 0.309, height)), sample, colours)
    for x in (0.349, 0.651):
        figure.add_artist(FancyArrowPatch((x, 0.3), (x + 0.026, 0.3), arrowstyle="simple", mutation_scale=22, color="#9aa5b1",
                                          transform=figure.transFigure))  # fmt: skip
    figure.savefig(target)
    plt.close(figure)
