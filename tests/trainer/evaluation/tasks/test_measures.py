"""The tasks himo, multilabel and chains on invented files, compared with loops over the definitions."""

import json
from collections.abc import Callable
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import kendalltau, pearsonr
from sklearn.metrics import average_precision_score
from torch import Tensor

from hypergrit_common.errors import UserError
from tests.trainer.evaluation.tasks.fake_embedder import FakeEmbedder, constant, random_vector
from tests.trainer.small import small_model
from trainer.evaluation.metrics.distances import pairwise_distances
from trainer.evaluation.task import ImageSource, MissingFilesError, TaskOptions
from trainer.evaluation.tasks import chains, himo, multilabel

Write = Callable[..., Path]
METRIC = TaskOptions(ranking="metric")
N = 6


def pictures(write: Write, folder: str, n: int = N) -> None:
    for i in range(n):
        write(f"{folder}/{i}.jpg", f"image {i}")


def captions(i: int) -> list[str]:
    return [f"picture {i}" + "".join(f", part {k}" for k in range(j)) for j in range(2 + i % 3)]


def write_himo(write: Write, *more: str) -> None:
    lines = [json.dumps({"img_path": f"{i}.jpg", "caption": captions(i)}) for i in range(N)]
    write("himo/himo_docci_data.json", "\n".join([*lines, *more]) + "\n")
    pictures(write, "docci/images")


@pytest.mark.parametrize("name", ["clip", "meru", "phyclip"])
def test_himo_is_the_mean_correlation_of_place_and_score(tmp_path: Path, write: Write, name: str) -> None:
    write_himo(write)
    embedder = FakeEmbedder(small_model(name))
    result = himo.evaluate(embedder, tmp_path, METRIC)
    model, found, rising = embedder.model, [], []
    for i in range(N):
        image = model.lift_image(random_vector(str(ImageSource(path=tmp_path / f"docci/images/{i}.jpg")))[None])
        text = model.lift_text(torch.stack([random_vector(caption) for caption in captions(i)]))
        scores = model.similarity(image, text)[0].tolist()
        found.append(pearsonr(range(len(scores)), scores).statistic)
        rising.append(all(later > earlier for earlier, later in pairwise(scores)))
    assert result.metrics == pytest.approx({"pearson": sum(found) / N, "monotone": sum(rising) / N}, abs=1e-5)
    assert result.items["pearson"].metric() == result.metrics["pearson"]


def test_scores_that_do_not_change_have_no_correlation(tmp_path: Path, write: Write) -> None:
    write_himo(write)
    result = himo.evaluate(FakeEmbedder(text=constant, image=constant), tmp_path, TaskOptions())
    assert result.metrics == {"pearson": 0, "monotone": 0}


@pytest.mark.parametrize("line", ['{"img_path": "0.jpg", "caption": ["one"]}', "{", '{"img_path": 3, "caption": []}'])
def test_a_malformed_line_of_himo_is_named(tmp_path: Path, write: Write, line: str) -> None:
    write_himo(write, line)
    with pytest.raises(UserError, match=rf"himo_docci_data.json, line {N + 1}"):
        himo.evaluate(FakeEmbedder(), tmp_path, TaskOptions())


SETS = [["dog"], ["dog", "car"], ["car"], ["car", "tree"], [], ["dog", "car", "tree"]]


def write_own(write: Write) -> None:
    lines = [f"{i}.jpg,{'; '.join(labels)}" for i, labels in enumerate(SETS)]
    write("multilabel/toy.csv", "\n".join(["image,labels", *lines]) + "\n")
    pictures(write, "multilabel/toy")


@pytest.mark.parametrize("name", ["clip", "meru", "phyclip"])
def test_multi_label_precision_and_lattice_equal_loops(tmp_path: Path, write: Write, name: str) -> None:
    write_own(write)
    embedder = FakeEmbedder(small_model(name))
    result = multilabel.evaluate(embedder, tmp_path, METRIC)
    model = embedder.model
    sources = [ImageSource(path=tmp_path / f"multilabel/toy/{i}.jpg") for i in range(N)]
    points = model.lift_image(torch.stack([random_vector(str(source)) for source in sources]))
    names = ["car", "dog", "tree"]
    prompts = [[prompt.replace("{}", label) for prompt in multilabel.PROMPTS] for label in names]
    classes = model.lift_prompts(torch.stack([torch.stack([random_vector(text) for text in row]) for row in prompts]))
    scores = model.similarity(points, classes).detach()
    expected = [average_precision_score([n in labels for labels in SETS], scores[:, i]) for i, n in enumerate(names)]
    assert result.metrics["toy/mAP"] == pytest.approx(sum(expected) / 3)
    assert result.chance["toy/mAP"] == pytest.approx((4 + 3 + 2) / 18)
    assert "voc2007" in result.details["missing"]
    pairs = list(combinations(range(N), 2))
    distances = [pairwise_distances(model, points)[i, j].item() for i, j in pairs]
    sizes = [len(set(SETS[i]) ^ set(SETS[j])) for i, j in pairs]
    assert result.metrics["toy/lattice/pearson"] == pytest.approx(pearsonr(distances, sizes).statistic)


def test_several_rows_of_an_image_are_joined_and_a_file_without_labels_loses_no_other(
    tmp_path: Path, write: Write
) -> None:
    write_own(write)
    rows = [f"{i}.jpg,{label}" for i, labels in enumerate(SETS) for label in labels or [""]]
    write("multilabel/long.csv", "\n".join(["image,labels", *rows]) + "\n")
    pictures(write, "multilabel/long")
    write("multilabel/empty.csv", "image,labels\n0.jpg,\n")
    problems = multilabel.Problems()
    toy, long = (
        multilabel.read_own(tmp_path / f"multilabel/{name}.csv", tmp_path, problems) for name in ("toy", "long")
    )
    assert (toy.names, toy.labels.tolist()) == (long.names, long.labels.tolist())
    result = multilabel.evaluate(FakeEmbedder(), tmp_path, METRIC)
    assert {"toy/mAP", "long/mAP"} <= result.metrics.keys()
    assert "empty.csv has no image with a label" in str(result.details["malformed"])


def test_voc_and_coco_are_read_from_their_files(tmp_path: Path, write: Write) -> None:
    folder = "voc2007/VOCdevkit/VOC2007"
    write(f"{folder}/ImageSets/Main/cat_test.txt", "0  1\n1 -1\n2  0\n3 -1\n")
    write(f"{folder}/ImageSets/Main/dog_test.txt", "0 -1\n1  1\n2  1\n3 -1\n")
    pictures(write, f"{folder}/JPEGImages", 4)
    pictures(write, "coco/val2017", 3)
    annotations = [
        {"image_id": 1, "category_id": 7},
        {"image_id": 1, "category_id": 7},
        {"image_id": 2, "category_id": 9},
    ]
    table = {
        "categories": [{"id": 7, "name": "cat"}, {"id": 9, "name": "dog"}],
        "images": [{"id": i, "file_name": f"{i}.jpg"} for i in range(3)],
        "annotations": annotations,
    }
    write("coco/annotations/instances_val2017.json", table)
    problems = multilabel.Problems()
    voc, coco = multilabel.read_voc(tmp_path, problems), multilabel.read_coco(tmp_path, problems)
    assert (voc.names, voc.labels.tolist()) == (["cat", "dog"], [[1, 0], [0, 1], [multilabel.IGNORED, 1], [0, 0]])
    assert (coco.names, coco.labels.tolist()) == (["cat", "dog"], [[0, 0], [1, 0], [0, 1]])
    embedder = FakeEmbedder()
    result = multilabel.evaluate(embedder, tmp_path, TaskOptions())
    vectors = [random_vector(str(ImageSource(path=tmp_path / f"{folder}/JPEGImages/{i}.jpg"))) for i in range(4)]
    distances = pairwise_distances(embedder.model, embedder.model.lift_image(torch.stack(vectors)))
    sets = [{"cat"}, {"dog"}, {"cat", "dog"}, set()]  # the cat of the third image is a difficult one
    pairs = list(combinations(range(4), 2))
    expected = pearsonr([distances[i, j].item() for i, j in pairs], [len(sets[i] ^ sets[j]) for i, j in pairs])
    assert result.metrics["voc2007/lattice/pearson"] == pytest.approx(expected.statistic)
    assert {"voc2007/mAP", "coco/softmax/mAP", "coco/lattice/distortion"} <= result.metrics.keys()
    assert not problems.malformed
    table["annotations"] = [*annotations, {"image_id": 8, "category_id": 7}]
    write("coco/annotations/instances_val2017.json", table)
    with pytest.raises(UserError, match="image 8 and category 7"):
        multilabel.read_coco(tmp_path, problems)


def write_chains(write: Write, with_images: bool = True) -> None:
    lines = [f"thing => kite {i} => red kite {i},{f'{i}.jpg' if with_images else ''}" for i in range(N)]
    write("chains/toy.csv", "\n".join(["captions,image", *lines]) + "\n")
    pictures(write, "chains/toy")


def chain_vectors() -> list[Tensor]:
    texts = [("thing", f"kite {i}", f"red kite {i}") for i in range(N)]
    return [torch.stack([random_vector(text) for text in row]) for row in texts]


def mean_tau(radii: list[Tensor]) -> float:
    return sum(kendalltau(range(len(row)), row.tolist()).statistic for row in radii) / len(radii)


@pytest.mark.parametrize("name", ["clip", "meru", "phyclip", "euclip"])
@pytest.mark.parametrize("with_images", [True, False])
def test_tau_of_own_chains_equals_scipy(tmp_path: Path, write: Write, name: str, with_images: bool) -> None:
    write_chains(write, with_images)
    embedder = FakeEmbedder(small_model(name))
    result = chains.evaluate(embedder, tmp_path, TaskOptions())
    if name != "clip":
        model = embedder.model
        points = [model.lift_text(row) for row in chain_vectors()]
        radii = [-model.similarity(torch.zeros_like(row[..., :1, :]), row)[0] for row in points]
        assert result.metrics["toy/path/tau"] == pytest.approx(mean_tau(radii))
    assert result.items["toy/path/tau"].metric() == pytest.approx(result.metrics["toy/path/tau"])
    assert ("toy/path/precision" in result.metrics) == with_images
    assert ("toy/pep/auc" in result.metrics) == (with_images and name != "clip")
    assert ("toy/himo/pearson" in result.metrics) == with_images


@pytest.mark.parametrize("with_images", [True, False])
def test_the_root_of_clip_is_that_of_the_file(tmp_path: Path, write: Write, with_images: bool) -> None:
    write_chains(write, with_images)
    root = random_vector("root")
    np.save(tmp_path / "root.npy", root.numpy())
    options = TaskOptions(root=str(tmp_path / "root.npy"))
    result = chains.evaluate(FakeEmbedder(small_model("clip")), tmp_path, options)
    expected = mean_tau([1 - torch.cosine_similarity(row, root[None]) for row in chain_vectors()])
    assert result.metrics["toy/path/tau"] == pytest.approx(expected)


def test_chains_of_different_lengths_are_malformed(tmp_path: Path, write: Write) -> None:
    write("chains/toy.csv", "captions,image\na => b,\na => b => c,\n")
    with pytest.raises(UserError, match="line 3 has no chain of 2 captions"):
        chains.evaluate(FakeEmbedder(), tmp_path, TaskOptions())
    with pytest.raises(MissingFilesError, match=r"chains/NAME.csv"):
        chains.evaluate(FakeEmbedder(), tmp_path / "chains", TaskOptions())
