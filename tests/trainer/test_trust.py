"""A model of a class of one's own in every verb: with the key `trust`, and never without it."""

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import Mock

import huggingface_hub
import PIL.Image
import pytest
import torch

from hypergrit_common.config import to_yaml
from hypergrit_common.errors import UserError
from pipeline.stages.score.scorers import load_head, load_scorer
from tests.trainer.small import small_model
from tests.trainer.small_run import overrides, run, run_command, small_config
from trainer import Model, evaluate, load_model
from trainer.analyses import disk
from trainer.checkpoints.model import load_frozen, read_weights, save_model
from trainer.config import as_dict, load_config
from trainer.data.preprocess import PreprocessConfig
from trainer.encoders.config import TextConfig
from trainer.features import command as features
from trainer.inference import export
from trainer.models import registry
from trainer.text.tokenizer import openai_tokenizer

CLASS = "own_package:Mine"
TRUST = f"trust=[{CLASS}]"
CODE = """
from dataclasses import dataclass
from pathlib import Path
from trainer.models.config import HyperbolicConfig
from trainer.models.meru import MERU

Path(__file__).with_name("imported").touch()

@dataclass(frozen=True, kw_only=True)
class MineConfig(HyperbolicConfig):
    # a setting of the class
    own: float = 2.0

class Mine(MERU):
    config: MineConfig
"""


class World:
    """Paths of a package, of runs of its class and of MERU, and of the data of both."""

    def __init__(self, root: Path) -> None:
        self.root, self.own, self.meru, self.shards, self.images = (
            root,
            *(root / n for n in ("own", "meru", "shards", "eval")),
        )
        self.mark = root / "package" / "own_package" / "imported"

    def forget(self) -> None:
        """Forget the class, as if the process were new."""
        registry.ENTRIES.pop(CLASS, None)
        for name in [name for name in sys.modules if name.partition(".")[0] == "own_package"]:
            del sys.modules[name]
        self.mark.unlink(missing_ok=True)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    found = World(tmp_path_factory.mktemp("own"))
    (found.root / "package" / "own_package").mkdir(parents=True)
    (found.root / "package" / "own_package" / "model.py").write_text(CODE, encoding="utf-8")
    init = (
        "from own_package.model import Mine\nfrom pathlib import Path\nPath(__file__).with_name('imported').touch()\n"
    )
    (found.root / "package" / "own_package" / "__init__.py").write_text(init, encoding="utf-8")
    for number, colour in enumerate(("red", "blue")):
        folder = found.images / "own" / "colours" / colour
        folder.mkdir(parents=True)
        PIL.Image.new("RGB", (16, 16), colour).save(folder / f"{number}.png")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(found.root / "package"))
        few = ("steps=3", "optim.warmup_steps=1")
        assert run(found.own, f"model_name={CLASS}", "model.own=3.0", *few) == 0
        assert run(found.meru, "model_name=meru", *few) == 0
        yield found
        found.forget()


def read_evaluation(world: World, *more: str) -> int:
    table = world.root / "table.json"
    rc = evaluate.main(
        [str(world.own), str(world.meru), f"shards={world.shards}", f"output={table}", "device=cpu", *more]
    )
    assert rc or set(json.loads(table.read_text())) == {"own", "meru"}
    return rc


def read_benchmarks(world: World, *more: str) -> int:
    output = world.root / "benchmarks"
    models = f"model=[{world.own},{world.meru}]"
    rc = evaluate.main(
        [models, f"data={world.images}", f"output={output}", "tasks=[classification]", "device=cpu", *more]
    )
    names = {
        name: found.get("name") for name, found in json.loads((output / "models.json").read_text())["models"].items()
    }
    assert rc or names == {"own": CLASS, "meru": "meru"}
    return rc


def write_features(world: World, *more: str) -> int:
    paths = [f"shards={world.shards}", f"model={world.own}", f"output={world.root / 'features'}"]
    return features.main([*paths, "device=cpu", "workers=0", *more])


def write_disk(world: World, *more: str) -> int:
    paths = [str(world.own), f"shards={world.shards}", f"output={world.root / 'disk.json'}"]
    return disk.main([*paths, "projection=norms", "max_samples=4", "device=cpu", *more])


def train_saved(world: World, *more: str) -> int:
    paths = (f"shards={world.shards}", f"tokenizer={world.root / 'merges.txt'}")
    return run_command([str(world.own / "config.yaml"), *paths, *more])


VERBS: dict[str, Callable[..., int]] = {
    "evaluate": read_evaluation,
    "benchmarks": read_benchmarks,
    "features": write_features,
    "disk": write_disk,
    "train": train_saved,
    "export_onnx": lambda world, *more: export.main([str(world.own), str(world.root / "onnx"), "format=onnx", *more]),
}


@pytest.mark.parametrize(
    "verb", [name if name != "export_onnx" else pytest.param(name, marks=pytest.mark.rest) for name in VERBS]
)
def test_a_verb_loads_the_class_with_the_key_that_its_message_names_and_never_without(
    verb: str, world: World, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    world.forget()
    assert VERBS[verb](world) in (2, 3)
    assert not world.mark.exists()
    said = capfd.readouterr()
    (form,) = set(re.findall(r"give '?(trust=\S+\])", said.out + said.err + caplog.text))
    assert form == f'trust=["{CLASS}"]'
    assert VERBS[verb](world, form) == 0
    assert world.mark.exists()
    if verb != "train":  # the key allows nothing but the class that it names
        world.forget()
        assert VERBS[verb](world, "trust=[own_package:Min,own_package]") in (2, 3)
        assert not world.mark.exists()


def test_python_loads_it_with_the_key_and_a_trusted_class_stays_untrusted_elsewhere(world: World) -> None:
    world.forget()
    for load in (load_model, Model.from_pretrained):
        with pytest.raises(UserError, match=rf'give trust=\["{CLASS}"\]'):
            load(world.own, device="cpu")
    assert not world.mark.exists()
    with pytest.raises(UserError, match="trust"):
        load_model(world.own, device="cpu", trust=f"{CLASS}More")
    model = load_model(world.own, device="cpu", trust=[CLASS])
    assert (model.name, model.module.config.own) == (CLASS, 3.0)  # type: ignore[attr-defined]
    assert load_model(world.own, device="cpu", trust=CLASS).name == CLASS  # one text is one class
    with pytest.raises(UserError, match="trust"):  # the same process has the class by now
        load_model(world.own, device="cpu")


def test_the_old_forms_name_the_new_one(world: World, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError, match=rf'names its model itself.*give trust=\["{CLASS}"\]'):
        load_model(world.own, CLASS, device="cpu")
    assert evaluate.main([str(world.own), f"model_name={CLASS}", f"shards={world.shards}"]) == 2
    assert f'give trust=["{CLASS}"]' in capfd.readouterr().err
    old = f"model=[{CLASS}:{world.own}]"
    assert evaluate.main([old, f"data={world.images}", f"output={world.root / 'old'}"]) == 2
    assert f'give trust=["{CLASS}"]' in capfd.readouterr().err


def test_a_shared_model_comes_back_and_its_card_says_how(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = Mock(upload_folder=lambda folder_path, **_: Path(folder_path).rename(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda **_: api)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: str(tmp_path / "hub"))
    model = load_model(world.own, device="cpu", trust=[CLASS])
    model.push_to_hub("me/mine")
    world.forget()
    with pytest.raises(UserError, match="trust"):
        Model.from_pretrained("me/mine", device="cpu")
    again = Model.from_pretrained("me/mine", device="cpu", trust=[CLASS])
    assert torch.equal(again.encode_text(["a dog"]), model.encode_text(["a dog"]))
    card = (tmp_path / "hub" / "README.md").read_text(encoding="utf-8")
    assert f'Model.from_pretrained("FOLDER or OWNER/NAME", trust=["{CLASS}"])' in card
    assert "# Mine" in card
    assert f"`{CLASS}`: the package" in card
    assert "- Mine\n" in card


def test_a_head_of_it_is_trained_evaluated_and_shared(world: World) -> None:
    assert write_features(world, TRUST) == 0
    head = world.root / "head"
    settings = [item for item in overrides(head) if not item.startswith(("shards=", "model.", "tokenizer="))]
    settings += [f"data.features={world.root / 'features'}", "model.embed_dim=16", "steps=2", "optim.warmup_steps=1"]
    settings += ["model_name=meru", "save.every=2"]
    assert run_command(settings) == 0
    world.forget()
    images = [f"image_folders=[{world.images / 'own' / 'colours'}]", "device=cpu"]
    assert evaluate.main([str(head), *images]) == 2
    assert not world.mark.exists()
    assert evaluate.main([str(head), *images, TRUST]) == 0
    load_model(head, device="cpu", trust=[CLASS]).save_pretrained(world.root / "whole", tower=True)
    with pytest.raises(UserError, match="trust"):
        load_model(world.root / "whole", device="cpu").encode_image(PIL.Image.new("RGB", (16, 16)))


def test_a_head_that_names_a_class_for_a_released_file_runs_no_code(world: World, tmp_path: Path) -> None:
    world.forget()
    torch.save({"a": torch.zeros(1)}, tmp_path / "tower.pth")
    with pytest.raises(ValueError, match="trust"):
        load_frozen(tmp_path / "tower.pth", CLASS)
    assert not world.mark.exists()


def test_weights_of_it_start_another_training_without_the_key(world: World) -> None:
    world.forget()
    assert run(world.root / "next", "model_name=meru", f"init={world.own}", "steps=2", "optim.warmup_steps=1") == 0
    assert not world.mark.exists()
    assert read_weights(world.own).keys() == read_weights(world.root / "next").keys()


def test_a_saved_configuration_never_trusts(world: World, tmp_path: Path) -> None:
    world.forget()
    assert TRUST not in (world.own / "config.yaml").read_text()
    config = small_config(tmp_path / "run", f"model_name={CLASS}", TRUST)
    assert config.trust == (CLASS,)
    assert "trust" not in to_yaml(config)
    assert "trust" not in as_dict(config)
    forged = tmp_path / "config.yaml"
    forged.write_text(f"model_name: {CLASS}\ntrust: ['{CLASS}']\noutput: o\n", encoding="utf-8")
    world.forget()
    with pytest.raises(UserError, match=f"names model_name={CLASS}, which is not followed"):
        load_config([str(forged), "shards=s", "output=o"])
    assert not world.mark.exists()


def test_the_pipeline_scores_with_it(world: World) -> None:
    model = str(world.own / "model")
    for load in (load_head, lambda path, trust=(): load_scorer(path, "cpu", 2, trust)):
        world.forget()
        with pytest.raises(UserError, match=rf'give trust=\["{CLASS}"\]'):
            load(model)
        assert not world.mark.exists()
        assert load(model, trust=[CLASS])


def test_it_goes_to_open_clip_and_back(tmp_path: Path, world: World) -> None:
    registry.use_model(CLASS)
    text = TextConfig(context_length=12, width=16, layers=1, heads=2)
    model = small_model(CLASS, text=text)
    save_model(
        tmp_path / "own", model, tokenizer=openai_tokenizer(12), preprocess=PreprocessConfig(size_px=16), record={}
    )
    for source, target in (("own", "exported"), ("exported", "again")):
        world.forget()
        assert export.main([str(tmp_path / source), str(tmp_path / target)]) == 2
        assert not world.mark.exists()
        assert export.main([str(tmp_path / source), str(tmp_path / target), TRUST]) == 0
    assert load_model(tmp_path / "again", device="cpu", trust=[CLASS]).name == CLASS
