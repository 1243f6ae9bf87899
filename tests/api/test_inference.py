"""The public API of `trainer`: loading a model, encoding, similarity, entailment."""

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
import torch

import trainer
from hypergrit_common.errors import UserError
from hypergrit_common.images import ORIENTATION_TAG
from tests.devices import DEVICES
from tests.trainer.small import small_model
from trainer import MODELS, Model, build_model, load_model
from trainer.checkpoints.model import LoadedModel, save_model
from trainer.data.preprocess import PreprocessConfig, fit
from trainer.encoders.config import TextConfig
from trainer.text.tokenizer import Tokenizer

WITH_CONES = [name for name in MODELS if name != "clip"]
TEXTS = ["a cat", "a dog on a sofa", "b"]


def saved(folder: Path, name: str) -> Path:
    """Save a small model with random weights as a training run does; return the folder of the run."""
    torch.manual_seed(0)
    model = small_model(name, text=TextConfig(vocab_size=514, context_length=8, width=32, layers=1, heads=2))
    preprocess = PreprocessConfig(size_px=model.config.image.size_px)
    tokenizer = Tokenizer([], model.config.text.context_length)
    save_model(folder / "model", model, tokenizer=tokenizer, preprocess=preprocess, record={})
    return folder


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load_model(saved(tmp_path_factory.mktemp(request.param), request.param), device="cpu")


def pictures() -> list[PIL.Image.Image]:
    generator = np.random.default_rng(0)
    return [PIL.Image.fromarray(generator.integers(0, 255, (20, 30, 3), np.uint8)) for _ in range(4)]


def test_a_run_and_its_model_folder_load_the_same_model(tmp_path: Path) -> None:
    folder = saved(tmp_path, "meru")
    first, second = load_model(folder, device="cpu"), load_model(str(folder / "model"), device="cpu")
    assert (first.name, first.embed_dim) == ("meru", second.embed_dim)
    assert torch.equal(first.encode_text(TEXTS), second.encode_text(TEXTS))


def test_encoding_gives_one_row_per_item_whatever_the_batch_size(model: Model) -> None:
    images, texts = model.encode_image(pictures()), model.encode_text(TEXTS)
    assert images.shape == (4, model.embed_dim)
    assert texts.shape == (3, model.embed_dim)
    torch.testing.assert_close(model.encode_image(pictures(), batch_size=3), images)
    torch.testing.assert_close(model.encode_text(TEXTS, batch_size=1), texts)
    with pytest.raises(ValueError, match="batch_size is -1; give"):
        model.encode_text(TEXTS, batch_size=-1)
    with pytest.raises(ValueError, match="query is 'images'; give image or text"):
        model.similarity(images, texts, query="images")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="is no head on cached features"):
        load_model("tests/trainer/finished_run", device="cpu", tower="out/none")
    torch.testing.assert_close(model.encode_text(TEXTS[1]), texts[1:2])
    assert not images.requires_grad
    assert model.encode_text([]).shape == (0, model.embed_dim)


def test_paths_images_and_arrays_are_encoded_alike(model: Model, tmp_path: Path) -> None:
    picture = pictures()[0]
    picture.save(tmp_path / "a.png")
    expected = model.encode_image(picture)
    for given in (tmp_path / "a.png", str(tmp_path / "a.png"), np.array(picture), [picture]):
        torch.testing.assert_close(model.encode_image(given), expected)


def variants(folder: Path) -> Iterator[Path]:
    """Image files whose pixels depend on transparency, orientation or bit depth."""
    picture = pictures()[0]
    alpha = picture.convert("RGBA")
    alpha.putalpha(PIL.Image.linear_gradient("L").resize(picture.size))
    alpha.save(folder / "alpha.png")
    yield folder / "alpha.png"
    exif = PIL.Image.Exif()
    exif[ORIENTATION_TAG] = 6
    picture.save(folder / "rotated.jpg", exif=exif)
    yield folder / "rotated.jpg"
    PIL.Image.fromarray(np.arange(600, dtype=np.uint16).reshape(20, 30) * 100).save(folder / "deep.png")
    yield folder / "deep.png"
    picture.quantize(8).save(folder / "palette.gif")
    yield folder / "palette.gif"


def test_a_file_gives_the_same_embedding_as_a_path_and_as_a_pil_image(tmp_path: Path) -> None:
    model = load_model(saved(tmp_path, "meru"), device="cpu")
    for path in variants(tmp_path):
        with PIL.Image.open(path) as picture:
            assert torch.equal(model.encode_image(picture), model.encode_image(path)), path


@pytest.mark.parametrize("shape", [(4, 4), (3, 4, 4), (4, 4, 4), (0, 4, 3)])
def test_an_array_of_another_shape_is_an_error(shape: tuple[int, ...], tmp_path: Path) -> None:
    model = load_model(saved(tmp_path, "meru"), device="cpu")
    with pytest.raises(UserError, match=r"give uint8 \[height, width, 3\]"):
        model.encode_image(np.zeros(shape, np.uint8))


def test_encoding_and_similarity_are_those_of_the_module(model: Model) -> None:
    images, texts = model.encode_image(pictures()), model.encode_text(TEXTS)
    pixels = torch.stack([fit(np.array(picture), model.preprocess) for picture in pictures()])
    with torch.no_grad():
        points = model.module.encode_image(pixels), model.module.encode_text(model.tokenizer(TEXTS))
        expected = model.module.directed_similarity(*points, "image")
        reverse = model.module.directed_similarity(*points[::-1], "text")
    assert expected.shape == (4, 3)
    torch.testing.assert_close(model.similarity(images, texts), expected)
    torch.testing.assert_close(model.similarity(texts, images, query="text"), reverse)
    assert torch.equal(model.similarity(texts, images), reverse) == model.module.is_symmetric
    if model.module.is_symmetric:
        assert (model.similarity(texts, texts).diagonal() >= model.similarity(texts, texts).amax(1) - 1e-4).all()


@pytest.mark.parametrize("name", WITH_CONES)
def test_entailment_agrees_with_the_energy_of_the_module_pair_by_pair(name: str, tmp_path: Path) -> None:
    model = load_model(saved(tmp_path, name), device="cpu")
    texts, images = model.encode_text(TEXTS), model.encode_image(pictures())
    for scale in (0.5, 1.0, 8.0):
        found = model.entails(texts, images, aperture_scale=scale)
        assert found.shape == (3, 4)
        for i, text in enumerate(texts):
            for j, image in enumerate(images):
                energy = model.module.energy(model._split(text[None]), model._split(image[None]), scale)
                assert bool(found[i, j]) == bool((energy == 0).all())


@pytest.mark.parametrize("name", ["meru", "phyclip", "poinclip"])
def test_entailment_in_small_blocks_is_the_same(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_model(saved(tmp_path, name), device="cpu")
    texts, images = model.encode_text(TEXTS), model.encode_image(pictures())
    expected = model.entails(texts, images, aperture_scale=4)
    monkeypatch.setattr("trainer.inference.search.MAX_PAIRS", 5)
    assert torch.equal(model.entails(texts, images, aperture_scale=4), expected)


def test_very_wide_cones_entail_every_point_and_cones_of_width_zero_entail_none(tmp_path: Path) -> None:
    model = load_model(saved(tmp_path, "hycoclip"), device="cpu")
    texts, images = model.encode_text(TEXTS), model.encode_image(pictures())
    assert model.entails(texts, images, aperture_scale=100).all()
    assert not model.entails(texts, images, aperture_scale=0).any()


@pytest.mark.parametrize(("name", "scales"), [("hycoclip", (0.7, 1.2)), ("meru", (1.0, 1.0)), ("hyper3", (0.7, 1.2))])
def test_entailment_uses_the_apertures_of_the_training(name: str, scales: tuple[float, float], tmp_path: Path) -> None:
    model = load_model(saved(tmp_path, name), device="cpu")
    texts, images = model.encode_text(TEXTS), model.encode_image(pictures())
    across, within = model.entailment(texts, images), model.entailment(texts, texts, within=True)
    assert torch.equal(across, model.entailment(texts, images, aperture_scale=scales[0]))
    assert torch.equal(within, model.entailment(texts, texts, aperture_scale=scales[1]))
    assert torch.equal(model.entails(texts, texts, within=True), within >= 0)


def test_probabilities_are_the_softmax_with_the_learned_temperature(model: Model) -> None:
    images, texts = model.encode_image(pictures()), model.encode_text(TEXTS)
    found = model.probabilities(images, texts)
    torch.testing.assert_close(found.sum(1), torch.ones(4))
    gaps = model.similarity(images, texts) / model.module.config.temperature_init
    torch.testing.assert_close((found[:, 1] / found[:, 0]).log(), gaps[:, 1] - gaps[:, 0], atol=1e-3, rtol=1e-3)


def test_distances_are_those_of_the_space(model: Model) -> None:
    texts, images = model.encode_text(TEXTS), model.encode_image(pictures())
    distances = model.distance(texts, images)
    expected = -model.module.similarity(model._split(texts), model._split(images)) + (model.name == "clip")
    expected = expected.sqrt() if model.name == "euclip" else expected  # its similarity is the squared distance
    torch.testing.assert_close(distances, expected)
    root = torch.zeros(1, model.embed_dim)
    radius = torch.ones(4) if model.name == "clip" else model.distance(images, root)[:, 0]
    torch.testing.assert_close(model.radius(images), radius)


def test_distances_do_not_depend_on_the_similarity_of_the_training(tmp_path: Path) -> None:
    points = torch.tensor([[0.3, 0.4], [0.0, 0.0]])
    model = load_model(saved(tmp_path, "meru"), device="cpu")
    rows = torch.nn.functional.pad(points, (0, model.embed_dim - 2))
    expected = math.asinh(0.5)  # curvature -1
    for logits in ("distance", "inner"):
        object.__setattr__(model.module.config, "logits", logits)
        torch.testing.assert_close(model.distance(rows, rows)[0, 1].item(), expected)
        torch.testing.assert_close(model.radius(rows)[0].item(), expected)
    assert model.similarity(rows, rows)[0, 1] != -expected


@pytest.mark.parametrize("name", WITH_CONES)
def test_entailment_margins_are_those_of_the_module_with_the_sign_reversed(name: str, tmp_path: Path) -> None:
    model = load_model(saved(tmp_path, name), device="cpu")
    texts, images = model.encode_text(TEXTS), model.encode_image(pictures())
    margins = model.entailment(texts, images, aperture_scale=1)
    for i, j in ((0, 0), (2, 3)):
        angle, aperture = model.module.cone(model._split(texts[i : i + 1]), model._split(images[j : j + 1]))
        torch.testing.assert_close(margins[i, j], (aperture - angle).min())
    assert torch.equal(model.entails(texts, images, aperture_scale=1), margins >= 0)
    assert model.entailment(texts[:0], images).shape == (0, 4)
    assert model.entailment(texts, images[:0]).shape == (3, 0)
    assert model.entails(texts, images[:0]).shape == (3, 0)


def spread(model: Model, n: int) -> torch.Tensor:
    """Random points of the model's space, far from and near the root, the last two equal."""
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(n, model.embed_dim, generator=generator) * torch.linspace(0.1, 6, n)[:, None]
    features[-1] = features[-2]
    with torch.no_grad():
        return model._join(model.module.lift_text(features))


def test_nearest_neighbours_are_those_of_the_full_matrix(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    queries, candidates = model.encode_image(pictures()), spread(model, 40)
    distances, order = model.distance(queries, candidates).sort(stable=True)
    for size in (2**16, 7):
        monkeypatch.setattr("trainer.evaluation.metrics.ranking.BLOCK_NUMBERS", size)
        found = model.nearest(queries, candidates, k=5)
        torch.testing.assert_close(found.distances, distances[:, :5])
        assert torch.equal(found.indices, order[:, :5])
    assert model.nearest(queries, candidates, k=50).indices.shape == (4, 40)
    assert model.nearest(queries[:0], candidates).indices.shape == (0, 10)
    with pytest.raises(UserError, match="k is 0"):
        model.nearest(queries, candidates, k=0)


def test_an_index_finds_the_neighbours_that_the_distance_finds(model: Model) -> None:
    queries, candidates = torch.cat([model.encode_image(pictures()), spread(model, 9)]), spread(model, 40)
    if model.name == "phyclip":
        with pytest.raises(UserError, match="PHyCLIP adds the distances of 2 factors"):
            model.index(candidates)
        return
    index, exact = model.index(candidates), model.nearest(queries, candidates, k=5)
    found = model.nearest(queries, index, k=5)
    atol = 2e-4 * getattr(model.module.config, "curv_init", 1.0) ** -0.5  # the unit of distances is 1/sqrt(c)
    torch.testing.assert_close(found.distances, exact.distances, atol=atol, rtol=1e-4)
    assert (found.indices == exact.indices).float().mean() > 0.97  # the order of equal distances may differ
    products = index.query_rows(model._split(queries)) @ index.rows.T
    assert (products.argmax(1) == exact.indices[:, 0]).all()


def test_an_index_of_a_product_with_one_factor_is_that_of_its_factor(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = small_model("phyclip", factor_dim=16)
    tokenizer, preprocess = Tokenizer([], 8), PreprocessConfig(size_px=16)
    parts = LoadedModel(model=module, tokenizer=tokenizer, preprocess=preprocess, config={})
    model = Model(parts, torch.device("cpu"))
    points = spread(model, 20)
    found, exact = model.nearest(points[:3], model.index(points), k=3), model.nearest(points[:3], points, k=3)
    assert torch.equal(found.indices, exact.indices)
    torch.testing.assert_close(found.distances, exact.distances, atol=2e-3, rtol=1e-4)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["clip", "meru", "phyclip", "poinclip"])
def test_comparisons_run_on_the_device_of_the_model(name: str, device: str, tmp_path: Path) -> None:
    expected = load_model(saved(tmp_path, name), device="cpu")
    model = load_model(tmp_path, device=device)
    points = spread(expected, 12)  # on the CPU
    found, neighbours = model.nearest(points[:5], points, k=3), expected.nearest(points[:5], points, k=3)
    results = [found.distances, found.indices, model.radius(points), model.probabilities(points[:5], points)]
    results.append(model.traverse(points[:2], points, steps=4))
    if name != "phyclip":
        results += model.nearest(points[:5], model.index(points), k=3)
    if name != "clip":
        results.append(model.entails(points, points))
    assert {result.device.type for result in results} == {device}
    torch.testing.assert_close(found.distances.cpu(), neighbours.distances, atol=1e-3, rtol=1e-4)
    torch.testing.assert_close(results[3].cpu(), expected.probabilities(points[:5], points), atol=1e-3, rtol=1e-2)


def test_a_traversal_begins_at_the_point_and_ends_at_the_root(model: Model) -> None:
    texts = torch.cat([spread(model, 30)[20:29], model.encode_text(TEXTS)])
    found = model.traverse(texts[:2], texts, steps=7)
    assert found.shape == (2, 7)
    assert found[:, 0].tolist() == [0, 1]
    assert found[:, -1].tolist() == [len(texts)] * 2
    if model.name == "clip":
        stays = model.traverse(texts[:1], texts, steps=7, root=texts[0])  # the point is the root, up to rounding
        assert set(stays[0].tolist()) <= {0, len(texts)}
        with pytest.raises(ValueError, match="set entailing=False"):
            model.traverse(texts, texts, entailing=True)
    with pytest.raises(ValueError, match="0 points and 50 steps are no path"):
        model.traverse(texts[:0], texts)


def test_an_entailing_traversal_keeps_texts_whose_cones_contain_the_step(tmp_path: Path) -> None:
    model = load_model(saved(tmp_path, "meru"), device="cpu")
    point = torch.nn.functional.pad(torch.tensor([[3.0, 0.0]]), (0, model.embed_dim - 2))
    beside = torch.nn.functional.pad(torch.tensor([[2.9, 0.3]]), (0, model.embed_dim - 2))
    pool = torch.cat([beside, point / 2])
    assert model.traverse(point, pool, steps=2).tolist() == [[0, 2]]
    assert model.traverse(point, pool, steps=2, entailing=True).tolist() == [[1, 2]]


def test_clip_has_no_cones(tmp_path: Path) -> None:
    model = load_model(saved(tmp_path, "clip"), device="cpu")
    with pytest.raises(ValueError, match="clip has no entailment cones; load one of the hyperbolic models"):
        model.entails(model.encode_text(TEXTS), model.encode_text(TEXTS))


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"{tmp_path / 'nothing'}"):
        load_model(tmp_path / "nothing")
    model = load_model(saved(tmp_path, "meru"), device="cpu")
    (tmp_path / "broken.jpg").write_bytes(b"not an image")
    for name in ("broken.jpg", "missing.jpg"):
        with pytest.raises(UserError, match=rf"{name} cannot be read as an image"):
            model.encode_image([tmp_path / name])
    with (
        pytest.raises(UserError, match="torch finds no CUDA device")
        if not torch.cuda.is_available()
        else pytest.raises(UserError)
    ):
        load_model(tmp_path, device="cuda:99")


def test_a_damaged_released_file_is_named_and_an_intact_one_needs_the_name_of_its_model(tmp_path: Path) -> None:
    path = tmp_path / "model.pth"
    path.write_bytes(b"")
    with pytest.raises(UserError, match=r"model\.pth"):
        load_model(path, model_name="meru")
    torch.save({"model": small_model("meru").state_dict()}, path)
    with pytest.raises(UserError, match=r"model_name"):
        load_model(path)


def test_a_model_is_built_by_name_with_random_weights() -> None:
    config = small_model("phyclip").config
    assert build_model("phyclip", config).config == config
    with pytest.raises(ValueError, match="unknown model 'siglip'; choose one of clip, meru"):
        build_model("siglip")


def test_the_trainer_lists_its_public_names() -> None:
    assert dir(trainer) == sorted(trainer.__all__) == ["MODELS", "Model", "build_model", "load_model"]
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        trainer.nothing  # noqa: B018
