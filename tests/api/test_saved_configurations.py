"""A configuration that somebody else has saved: no key of `run` and `train` opens a connection, a file, or a process."""

import base64
import ctypes
import dataclasses
import json
import os
import re
import shlex
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import cv2
import numpy as np
import pytest
import yaml

from hypergrit_common.config import marked_keys, nested, runtime_keys
from hypergrit_common.errors import UserError
from pipeline import config as pipeline_config
from pipeline import grit
from pipeline.config import PipelineConfig
from pipeline.output.source import read_config
from pipeline.output.store import Store
from tests.pipeline.here import running_here
from tests.pipeline.jobs import WITHOUT_MODELS
from trainer import config as trainer_config
from trainer.config import TrainConfig
from trainer.data.feature_record import RECORD_NAME
from trainer.models.registry import MODELS
from trainer.training.build import new_model

STARTS = ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "os.exec")
CONNECTS = ("socket.connect", "socket.getaddrinfo", "socket.sendto")
OPENED = 0x20  # IN_OPEN of inotify(7): by any library, with or without Python

events: list[str] | None = None


def note(event: str, arguments: tuple[Any, ...]) -> None:
    """Note a connection or the start of a process, while somebody watches."""
    if events is not None and event in (*STARTS, *CONNECTS):
        events.append(f"{event} {arguments}")


sys.addaudithook(note)


class Stranger:
    """Places of a stranger: a folder whose files must stay closed, a port that nobody may call, and a class."""

    def __init__(self, root: Path) -> None:
        self.config, self.bait, self.mark = root / "theirs" / "config.yaml", root / "bait", root / "imported"
        for folder in (self.config.parent, self.bait, root / "code"):
            folder.mkdir()
        (root / "code" / "hostile_module.py").write_text(f"open({str(self.mark)!r}, 'w')\n", encoding="utf-8")
        (self.bait / "file.jsonl").write_text('{"url": "http://127.0.0.1/a.jpg", "caption": "a"}\n', encoding="utf-8")
        self.server = socket.create_server(("127.0.0.1", 0))
        self.server.settimeout(0)
        libc = ctypes.CDLL(None, use_errno=True)
        self.watch = libc.inotify_init1(os.O_NONBLOCK)
        assert libc.inotify_add_watch(self.watch, str(self.bait).encode(), OPENED) > 0
        url = f"http://127.0.0.1:{self.server.getsockname()[1]}/x"
        self.file = str(self.bait / "file.jsonl")
        self.texts = (self.file, url, f"openai:{url}#m", "hostile_module:Class", "127.0.0.1")

    def save(self, key: str, value: Any) -> None:
        self.config.write_text(yaml.safe_dump(nested(key, value)), encoding="utf-8")

    @contextmanager
    def watched(self, about: str) -> Iterator[list[str]]:
        """The list of what happens in the block: connections, files of the stranger that are opened, processes, imports."""
        global events
        events = found = []
        try:
            yield found
        finally:
            events = None
            with suppress(BlockingIOError):
                found += [f"{len(os.read(self.watch, 1 << 16))} bytes of opened files"]
            with suppress(BlockingIOError):
                found += [f"connection from {self.server.accept()[1]}"]
            found += ["import"] * self.mark.exists()
            self.mark.unlink(missing_ok=True)
            sys.modules.pop("hostile_module", None)
            found[:] = [f"{about}: {text}" for text in found]


@pytest.fixture
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stranger]:
    found = Stranger(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path / "code"))
    yield found
    found.server.close()
    os.close(found.watch)


def leaves(cls: type, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The keys of a configuration with their types, for `train` those of all models."""
    hints = get_type_hints(cls)
    for item in dataclasses.fields(cls):
        kinds = [entry.config for entry in MODELS.values()] if prefix + item.name == "model" else [hints[item.name]]
        for kind in kinds:
            if dataclasses.is_dataclass(kind) and isinstance(kind, type):
                yield from leaves(kind, f"{prefix}{item.name}.")
            else:
                yield prefix + item.name, kind


def values(hint: Any, texts: tuple[str, ...]) -> list[Any]:
    """Values of a type that a stranger might want."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return list(arguments)
    if origin is tuple:
        return [[value] for value in values(arguments[0], texts)]
    if origin is dict:
        return [{"pretrained": True, "checkpoint_path": text, "model_type": text} for text in texts]
    if arguments:
        return [value for kind in arguments for value in values(kind, texts)]
    return {bool: [True], int: [3], float: [0.5], str: list(texts), Any: list(texts)}.get(hint, [])


def all_keys(cls: type, texts: tuple[str, ...]) -> list[tuple[str, Any]]:
    return [(key, value) for key, hint in dict(leaves(cls)).items() for value in values(hint, texts)]


def own_of(cls: type) -> list[str]:
    return ["input=a.csv", "output=b"] if cls is PipelineConfig else ["shards=a", "output=b"]


LOADS: dict[type, Callable[[list[str]], Any]] = {
    PipelineConfig: pipeline_config.load_config,
    TrainConfig: trainer_config.load_config,
}
"""The configurations of `run` and `train`, and what loads them."""


@pytest.mark.parametrize("cls", LOADS)
def test_no_key_of_a_saved_configuration_reaches_out_when_it_is_loaded(cls: type, stranger: Stranger) -> None:
    load, defaults, seen = LOADS[cls], LOADS[cls](own_of(cls)), set[str]()
    free, reaching = runtime_keys(cls), {*marked_keys(cls, "reaches")}
    for key, value in all_keys(cls, stranger.texts):
        stranger.save(key, value)
        config = None
        with stranger.watched(f"{key}={value}") as found, suppress(UserError):
            config = load([str(stranger.config), *own_of(cls)])
        assert found == []
        seen.add(key)
        if config is not None and (key in reaching or any(f"{key}.".startswith(f"{name}.") for name in free)):
            assert pick(config, key) == pick(defaults, key), key
    assert len(seen) > 90


def pick(config: Any, key: str) -> Any:
    for name in key.split("."):
        config = getattr(config, name)
    return config


def texts_of_content(cls: type, stranger: Stranger) -> Iterator[str]:
    """Save, one after the other, the name of a file in each key of a text or mapping that decides the content; yield it."""
    others, hints = {*marked_keys(cls, "reaches"), *runtime_keys(cls)}, dict(leaves(cls))
    for key, value in all_keys(cls, (stranger.file,)):
        holds_text = re.search(r"\bstr\b", str(hints[key]))
        if holds_text and not any(f"{key}.".startswith(f"{name}.") for name in others):
            stranger.save(key, value)
            yield f"{key}={value}"


def test_no_key_of_a_saved_configuration_reaches_out_when_its_job_runs(stranger: Stranger, tmp_path: Path) -> None:
    image = base64.b64encode(cv2.imencode(".png", np.zeros((40, 40, 3), np.uint8))[1].tobytes()).decode()
    rows = [{"image": image, "caption": "a cat"}, {"url": stranger.texts[1], "caption": "a dog"}]
    (tmp_path / "mine.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    own, codes = [*WITHOUT_MODELS, "ray.runner=local", "formats=[arrow]", "quiet=true"], list[int]()
    paths = [f"input={tmp_path / 'mine.jsonl'}", f"output={tmp_path / 'out'}", "overwrite=true"]
    for about in texts_of_content(PipelineConfig, stranger):
        with stranger.watched(about) as found, running_here():
            codes.append(grit.main([str(stranger.config), *paths, *own]))
        assert found == []
    assert codes.count(0) > 5
    assert {*codes} == {0, 2}  # 2: such as a column that the input lacks
    stranger.save("input", stranger.file)
    mine = stranger.config.rename(stranger.config.with_name("mine.yaml"))
    with (
        stranger.watched("input") as found,
        running_here(),
    ):  # the same in a file of the user is followed, and seen here
        grit.main([str(mine), *paths[1:], *own])
    assert "bytes of opened files" in "".join(found)


def test_no_key_of_a_saved_configuration_reaches_out_when_its_model_is_built(stranger: Stranger) -> None:
    image = "model.image.kwargs={embed_dim: 32, depth: 1, num_heads: 2, patch_size: 8}"
    text = ("model.text.layers=1", "model.text.width=32", "model.text.heads=2", "model.text.vocab_size=514")
    own, n_built = [image, "model.image.size_px=16", *text, *own_of(TrainConfig)], 0
    for about in texts_of_content(TrainConfig, stranger):
        with stranger.watched(about) as found, suppress(UserError):
            new_model(trainer_config.load_config([str(stranger.config), *own]))
            n_built += 1
        assert found == []
    assert n_built > 1


@pytest.mark.parametrize("cls", LOADS)
def test_one_message_names_all_that_reaches_out_and_its_argument_allows_it(cls: type, stranger: Stranger) -> None:
    names = {*marked_keys(cls, "reaches")} - {
        "stages",
        "read.format",
        "recaption.captioner",
        "model_name",
        "data.features",
    }
    hints = dict(leaves(cls))
    content = {key: values(hints[key], (f"http://127.0.0.1/{key}",))[0] for key in names}
    layer: dict[str, Any] = {}
    for key, value in content.items():
        *groups, name = key.split(".")
        inner = layer
        for group in groups:
            inner = inner.setdefault(group, {})
        inner[name] = value
    stranger.config.write_text(yaml.safe_dump(layer), encoding="utf-8")
    with pytest.raises(UserError) as error:
        LOADS[cls]([str(stranger.config)])
    words = shlex.split(str(error.value))
    assert {word.partition("=")[0] for word in words if "=http" in word or "=[" in word} == {*names, "trust"}
    (trust,) = (word for word in words if word.startswith("trust="))
    trusting = LOADS[cls]([str(stranger.config), trust])
    assert all(pick(trusting, key) in (value, tuple(value)) for key, value in content.items())
    with pytest.raises(UserError, match="is not followed"):
        LOADS[cls]([str(stranger.config), trust.replace(sorted(names)[0], "another")])


def test_one_message_names_what_all_saved_configurations_lack(tmp_path: Path) -> None:
    files = [tmp_path / name / "config.yaml" for name in ("a", "b")]
    for file, text in zip(files, ("input: [/x.csv, /y.csv]", "score: {scorer: /clip}\ninput: /y.csv"), strict=True):
        file.parent.mkdir()
        file.write_text(text, encoding="utf-8")
    with pytest.raises(UserError) as error:
        pipeline_config.load_config([*map(str, files), "output=out"])
    first, second = map(str, files)
    assert f'{first} names \'input=["/x.csv","/y.csv"]\'; {second} names score.scorer=/clip input=/y.csv' in str(
        error.value
    )
    assert str(error.value).endswith("""'trust=["/x.csv","/y.csv","/clip"]'""")


@pytest.mark.parametrize(("cls", "key"), [(PipelineConfig, "read.format"), (TrainConfig, "tokenizer")])
def test_a_name_that_yaml_reads_as_a_number_or_truth_value_reaches_out_like_others(
    cls: type, key: str, stranger: Stranger
) -> None:
    for text in ("no", "0", "1e3", "false"):
        stranger.config.write_text(f"{key.replace('.', ': {')}: {text}{'}' * key.count('.')}", encoding="utf-8")
        with pytest.raises(UserError, match=rf"names {key}={text}, which is not followed .*'trust=\[\"{text}\"\]'"):
            LOADS[cls]([str(stranger.config), *own_of(cls)])


def test_a_verb_that_computes_an_output_again_says_which_settings_it_left_out(
    stranger: Stranger, caplog: pytest.LogCaptureFixture
) -> None:
    stranger.save("ray.retries", 7)
    store = Store(str(stranger.config.parent))
    with caplog.at_level("INFO"):
        read_config(store, own_of(PipelineConfig))
        assert caplog.messages == []
        read_config(store, own_of(PipelineConfig), loads=True)
    (message,) = caplog.messages
    assert message.endswith("only what decides the content is read; give again what you need of ray.retries=7")


def test_the_features_of_a_stranger_name_no_other_files_than_their_frozen_model(stranger: Stranger) -> None:
    tower = {"name": "cached", "weights": stranger.file, "kwargs": {"width": 8, "sha256": "0" * 64}}
    training: dict[str, Any] = {"model": {"image": tower, "text": tower}, "tokenizer": "openai"}
    record = stranger.config.with_name(RECORD_NAME)
    arguments = [f"data.features={stranger.config.parent}", "output=b"]
    for more, refused in (
        ({}, None),
        ({"ray": {"workers": 2, "address": "127.0.0.1:1"}, "log": {"wandb_project": "theirs"}}, "has wrong values"),
        ({"init": stranger.file}, "has wrong values"),
        ({"tokenizer": stranger.texts[1]}, "names tokenizer="),
        ({"model": {"image": tower, "text": {**tower, "name": "transformers"}}}, "has wrong values"),
    ):
        settings = {"views": 1, "rows_per_shard": 1, "tokens": None}
        whole = {"n_samples": 1, "settings": settings, "training": training | more}
        record.write_text(json.dumps({"tower": {"sha256": ""}, **whole}), encoding="utf-8")
        with stranger.watched(str(more)) as found:
            if refused:
                with pytest.raises(UserError, match=refused):
                    trainer_config.load_config(arguments)
            else:
                config = trainer_config.load_config(arguments)
                assert (config.ray.workers, config.ray.address, config.log.wandb_project) == (0, None, None)
                assert config.model.image.weights == stranger.file
        assert found == []
