"""Checkpoints of a run: written atomically, restored exactly, and refused by other runs."""

import json
import random
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from hypergrit_common.devices import THREADS, limit_threads
from hypergrit_common.errors import UserError
from tests.trainer.small_run import small_run
from trainer.checkpoints.folder import RunFolder, list_checkpoints, newest_checkpoint
from trainer.checkpoints.model import load_model, read_weights
from trainer.checkpoints.run import restore_checkpoint
from trainer.checkpoints.writer import CheckpointWriter
from trainer.config import as_dict, differences
from trainer.distributed.process import Process
from trainer.optim.config import LoRAConfig
from trainer.optim.freeze import merged_tensors
from trainer.training.build import Training
from trainer.training.results import save_trained_model
from trainer.training.step import update

CPU = Process(device=torch.device("cpu"))


class Saved(NamedTuple):
    """A run after one step, and its checkpoint."""

    run: Training
    path: Path

    def restore(
        self, differences: Callable[[dict[str, Any]], list[str]] = lambda saved: []
    ) -> tuple[int, dict[str, Any]]:
        return restore_checkpoint(self.path, self.run, CPU, differences)


def save(tmp_path: Path, run: Training, step: int, keep: int = 3) -> Path:
    writer = CheckpointWriter(RunFolder(str(tmp_path), tmp_path), keep, CPU)
    writer.save(step, run, run.loader.state_dict(), as_dict(run.config))
    writer.wait()
    return tmp_path / "checkpoints" / f"step_{step:08d}"


@pytest.fixture
def saved(tmp_path: Path) -> Saved:
    run = small_run(tmp_path / "run")
    update(run, next(iter(run.loader)))
    return Saved(run, save(tmp_path, run, 1))


def test_generators_and_loader_state_are_restored(saved: Saved) -> None:
    def draw() -> tuple[float, float, float]:
        return random.random(), float(np.random.rand()), torch.rand(()).item()  # noqa: NPY002

    expected, loader_state = draw(), saved.run.loader.state_dict()
    draw()
    next(iter(saved.run.loader))
    assert saved.run.loader.state_dict() != loader_state
    assert saved.restore() == (1, loader_state)
    assert draw() == expected


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process with three threads, of whose number the user has said nothing."""
    before = torch.get_num_threads()
    monkeypatch.delenv(THREADS, raising=False)
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def test_a_small_model_has_one_thread_by_default_and_a_resumed_run_those_of_its_checkpoint(
    threads: None, saved: Saved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert torch.get_num_threads() == 1  # `saved` is a run of a small model
    torch.set_num_threads(2)
    path = save(tmp_path, saved.run, 2)
    for given, expected in (("", 2), ("3", 3)):
        torch.set_num_threads(3)
        monkeypatch.setenv(THREADS, given) if given else monkeypatch.delenv(THREADS, raising=False)
        restore_checkpoint(path, saved.run, CPU, lambda saved: [])
        assert torch.get_num_threads() == expected
        limit_threads(saved.run.model, CPU.device)
        assert torch.get_num_threads() == (expected if given else 1)


def test_only_the_newest_checkpoints_are_kept_and_abandoned_drafts_are_removed(tmp_path: Path) -> None:
    run, folder = small_run(tmp_path / "run"), tmp_path / "checkpoints"
    (folder / ".draft_00000007").mkdir(parents=True)
    (folder / ".draft_00000007" / "state.json").write_text("{")
    assert newest_checkpoint(folder) is None
    for step in (1, 2, 10, 3):
        save(tmp_path, run, step, keep=2)
    (folder / "step_00000010.bak").mkdir()
    assert [path.name for path in list_checkpoints(folder)] == ["step_00000003", "step_00000010"]
    assert {path.name for path in folder.glob(".*")} == set()


@pytest.mark.parametrize(
    "settings",
    [
        ("optim.ema=0.9", "lora.ranks={textual*: 2}", "lora.rank_stabilised=true"),
        ("model.schedules={curv_init: {course: linear, values: [1, 0.4], steps: [0, 5]}}",),
    ],
    ids=["average and LoRA", "schedule"],
)
def test_a_checkpoint_is_the_model_that_the_run_would_have_saved(settings: tuple[str, ...], tmp_path: Path) -> None:
    run = small_run(tmp_path / "run", *settings)
    for batch in islice(run.loader, 2):
        update(run, batch)
    path = save(tmp_path / "run", run, run.step)
    save_trained_model(run)
    with pytest.raises(ValueError, match=r"state\.json names the tokenizer .*; give trust=\["):
        load_model(path)
    found, expected = load_model(path, trust=[run.config.tokenizer]), load_model(tmp_path / "run")
    assert found.model.config == expected.model.config
    assert found.preprocess == expected.preprocess
    assert found.tokenizer.encode("a cat") == expected.tokenizer.encode("a cat")
    states = [found.model.state_dict(), expected.model.state_dict(), read_weights(path)]
    assert all(torch.equal(state[key], value) for key, value in states[0].items() for state in states)
    small_run(tmp_path / "next", f"init={path}")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("step", -3, "is damaged or of another program"),
        ("config", [], "is damaged or of another program"),
        ("config", {"model_name": "hycoclip", "model": {"image": 5}}, "is damaged or of another program"),
        ("format", 9, "has format 9"),
    ],
)
def test_a_checkpoint_of_strangers_is_no_model(key: str, value: object, message: str, saved: Saved) -> None:
    file = saved.path / "state.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {key: value}))
    with pytest.raises(ValueError, match=message):
        load_model(saved.path)


def test_an_update_that_does_not_fit_its_matrix_is_refused_before_memory_is_taken() -> None:
    start = "textual.parametrizations.weight"
    for up, down in (((1, 9_000_000, 1), (1, 1, 9_000_000)), ((3,), (3,)), ((2, 2, 3), (2, 4, 5))):
        state = {f"{start}.original": torch.zeros(4, 5), f"{start}.0.up": torch.zeros(up)}
        with pytest.raises(ValueError, match=rf"the update of {start}\.original is missing, or does not fit it"):
            merged_tensors(state | {f"{start}.0.down": torch.zeros(down)}, LoRAConfig())
    assert merged_tensors({"a": torch.ones(1)}, LoRAConfig()).keys() == {"a"}


def test_a_checkpoint_in_parts_names_what_can_be_loaded(saved: Saved) -> None:
    (saved.path / "state.safetensors").rename(saved.path / "shard-00001.safetensors")
    with pytest.raises(FileNotFoundError, match=r"save\.sharded=true\); give the model/ of the finished run"):
        load_model(saved.path)


def test_a_checkpoint_of_the_same_step_is_replaced(tmp_path: Path, saved: Saved) -> None:
    saved.run.model.logit_scale.data.fill_(1.5)
    save(tmp_path, saved.run, 1)
    saved.run.model.logit_scale.data.fill_(0.0)
    saved.restore()
    assert saved.run.model.logit_scale.item() == 1.5


@pytest.mark.parametrize("name", ["state.json", "state.safetensors", "rank_00000.json"])
def test_a_damaged_file_is_an_error_that_names_it(saved: Saved, name: str) -> None:
    (saved.path / name).write_bytes((saved.path / name).read_bytes()[:20])
    with pytest.raises(
        UserError, match=rf"{saved.path}.* (cannot be read|is not valid JSON).*to resume from the checkpoint before it"
    ):
        saved.restore()


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"random": None},
        {"random": {"torch": "!"}},
        {"random": {"python": [3, [1] * 625, "x"]}},
        *({"random": {"numpy": {"pos": pos}}} for pos in (-1, 625, 2**31 - 1)),
        *({"random": {"numpy": {"key": key}}} for key in ([1] * 623, [1] * 700, [[1]] * 624)),
    ],
)
def test_a_state_of_a_process_without_its_fields_is_damaged(saved: Saved, wrong: dict[str, Any]) -> None:
    path = saved.path / "rank_00000.json"
    state = json.loads(path.read_text())
    random = wrong.get("random") and {**state["random"], **wrong["random"]}
    if random and "numpy" in wrong["random"]:
        numbers = state["random"]["numpy"]
        random["numpy"] = numbers | {"state": numbers["state"] | random["numpy"]}
    path.write_text(json.dumps({**state, **wrong, "random": random} if wrong else {}))
    with pytest.raises(UserError, match=r"rank_00000.json is damaged.*to resume from the checkpoint before it"):
        saved.restore()


WRONG = [
    ("state.json", entry, value)
    for entry, value in (("config", []), ("config", None), ("step", "x"), ("step", -5), ("ranks", None), ("scaler", 5),
                         ("files", [5]), ("files", "abc"), ("threads", 0), ("threads", 10**6), ("threads", True),
                         ("step", 13), ("config", {"optim": []}), ("config", {"optim": {"steps": "many"}}))
] + [("rank_00000.json", "loader", value)
     for value in (5, {}, {"data": "x", "counts": {}, "place": -1}, {"data": "x", "counts": 5, "place": 1},
                   *({"data": "x", "counts": {"boxes": n}, "place": 1} for n in ("9", [7], 1.5, -1, 10**40)))]  # fmt: skip


@pytest.mark.parametrize(("name", "entry", "value"), WRONG)
def test_an_entry_of_another_type_is_damage_of_its_file(saved: Saved, name: str, entry: str, value: Any) -> None:
    path = saved.path / name
    path.write_text(json.dumps(json.loads(path.read_text()) | {entry: value}))
    with pytest.raises(UserError, match=rf"{name} is damaged \(\w+ is '.*to resume from the checkpoint before it"):
        saved.restore()


def edit_header(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the header of a safetensors file, which describes its tensors; their bytes stay."""
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + size :])


def places(offsets: Callable[[int], list[Any]] | str) -> Callable[[dict[str, Any]], None]:
    """A change that adds places of shards: `offsets` of the number of dimensions of each tensor, or a text as it is."""

    def change(header: dict[str, Any]) -> None:
        text = offsets
        if callable(offsets):
            text = json.dumps({name: {"saved_offsets": offsets(len(of["shape"]))} for name, of in header.items()})
        header["__metadata__"] = {"DCP_SHARDING_INFO": text, "DCP_VERSION": "1"}

    return change


def renamed(old: str, new: str) -> Callable[[dict[str, Any]], None]:
    return lambda header: header.update({new: header.pop(old)})


def described(name: str, **facts: Any) -> Callable[[dict[str, Any]], None]:
    return lambda header: header[name].update(facts)


LION = "optimizer/exp_avg/visual_proj.weight"


def test_a_header_that_does_not_describe_the_tensors_of_the_run_is_an_error(tmp_path: Path) -> None:
    """Lion, since what its state holds was once taken from the header: a place of 10^12 would need 64 TB."""
    run = small_run(tmp_path / "run", "optim.name=lion")
    update(run, next(iter(run.loader)))
    path = save(tmp_path, run, 1)
    good = (path / "state.safetensors").read_bytes()
    cases: dict[Callable[[dict[str, Any]], Any], str] = {
        places("[1"): "cannot be read",
        places('{"model/curv": 3}'): "cannot be read",
        places(lambda n: ["x"] * n): "cannot be read",
        places(lambda n: [10**12] * n): "cannot be read .*make no tensor",
        renamed(LION, "optimizer/y"): "does not fit this model: only the .* has optimizer/",
        renamed(LION, "optimizer//"): "does not fit this model: only the .* has optimizer/",
        renamed(LION, LION.replace("exp_avg", "other")): "does not fit this model: only the model has",
        described(LION, shape=[16 * 32]): r"does not fit this model: .*visual_proj.weight is \[512\], not",
        described(LION, dtype="I32"): "does not fit this model: .*visual_proj.weight is of torch.int32, not",
    }
    for change, message in cases.items():
        (path / "state.safetensors").write_bytes(good)
        edit_header(path / "state.safetensors", change)
        with pytest.raises(UserError, match=message):
            restore_checkpoint(path, run, CPU, lambda saved: [])
    (path / "state.safetensors").write_bytes(good)
    (path / "more.safetensors").write_bytes(good)
    with pytest.raises(UserError, match="make no tensor"):
        restore_checkpoint(path, run, CPU, lambda saved: [])


def test_a_checkpoint_names_only_files_of_its_folder(saved: Saved) -> None:
    state = json.loads((saved.path / "state.json").read_text())
    for name in ("a" * 300, "a\0b", "../../../merges.txt", str(saved.path / "state.json")):
        (saved.path / "state.json").write_text(json.dumps(state | {"files": [name]}))
        with pytest.raises(UserError, match="lacks its file"):
            saved.restore()


def test_a_run_may_resume_in_another_precision(saved: Saved, tmp_path: Path) -> None:
    saved.run.scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    assert saved.restore()[0] == 1
    assert saved.run.scaler.get_scale() == 8  # that of the new run: the checkpoint is of one in fp32
    saved.run.scaler.scale(torch.ones(()))
    half = Saved(saved.run, save(tmp_path, saved.run, 2))
    saved.run.scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    half.restore()
    assert saved.run.scaler.get_scale() == 8
    state = json.loads((half.path / "state.json").read_text())
    for wrong in ({"scale": "x"}, {"scale": 0}, {"scale": 1e300}, {"_growth_tracker": 2**40}, {"growth_factor": None}):
        (half.path / "state.json").write_text(json.dumps(state | {"scaler": state["scaler"] | wrong}))
        with pytest.raises(UserError, match=r"state.json is damaged"):
            half.restore()
    saved.run.scaler = torch.amp.GradScaler("cpu", enabled=False)
    half.restore()
    assert saved.run.scaler.state_dict() == {}


def test_another_format_is_an_error(saved: Saved) -> None:
    state = json.loads((saved.path / "state.json").read_text())
    (saved.path / "state.json").write_text(json.dumps(state | {"format": 99}))
    with pytest.raises(UserError, match="format 99"):
        saved.restore()


def test_tensors_of_another_model_are_an_error_that_names_a_tensor(tmp_path: Path, saved: Saved) -> None:
    other = Saved(small_run(tmp_path / "run", "model_name=clip"), saved.path)
    with pytest.raises(UserError, match="model_name was 'hycoclip', is 'clip'"):
        other.restore(lambda saved: differences(saved, other.run.config))
    with pytest.raises(UserError, match=r"does not fit this model: only the checkpoint has curv; restore"):
        other.restore()


def test_only_the_first_differences_are_listed(saved: Saved) -> None:
    with pytest.raises(UserError, match=r"different settings: a; b; c; and 2 more\. Restore these settings"):
        saved.restore(lambda _: ["a", "b", "c", "d", "e"])
