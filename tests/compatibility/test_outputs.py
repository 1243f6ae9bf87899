"""Outputs of version 0.1 can be read: by the report, the trainer, the evaluation and GLIP's training."""

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from common.errors import UserError
from common.images import decode
from pipeline.config import load_config
from pipeline.ground.glip.training.shards import list_training_shards, read_examples, read_images
from pipeline.report.__main__ import main as report
from pipeline.report.stats import build_stats
from tests.trainer.small_run import run
from trainer.data.config import DataConfig
from trainer.data.loader import Loader
from trainer.text.tokenizer import Tokenizer

SAVED = Path(__file__).parent / "v0_1" / "output"


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return shutil.copytree(SAVED, tmp_path / "output")


def test_statistics_are_those_that_version_0_1_counted(output: Path) -> None:
    before = json.loads((SAVED / "stats.json").read_text(encoding="utf-8"))
    stats = build_stats(str(output))
    assert stats["rows"].pop("unfinished") == 0  # new in 0.3, like the lists below
    assert stats["top"].pop("kept_heads")
    assert stats["top"].pop("removed")
    for name in ("rows", "phrases", "boxes", "duplicates", "top"):
        assert json.loads(json.dumps(stats[name])) == before[name]  # type: ignore[literal-required]


def test_the_report_can_be_written_again(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["report", str(output)])
    report()
    assert "a blue church" in (output / "report.html").read_text(encoding="utf-8")


def test_shards_of_another_major_version_are_refused(output: Path) -> None:
    manifest = output / "_manifests" / "00001.json"
    manifest.write_text(manifest.read_text(encoding="utf-8").replace('"schema": "1.1"', '"schema": "2.0"'))
    with pytest.raises(UserError, match=r"shard 1 of .* has schema 2\.0"):
        build_stats(str(output))


def test_the_saved_configuration_is_translated(output: Path) -> None:
    config = load_config([str(output / "config.yaml"), "limit=3"])
    assert (config.ground.device, config.score.device, config.ground.compile) == ("auto", "auto", False)
    assert (config.rows_per_shard, config.limit, config.download.contact) == (5, 3, "someone@example.org")


@pytest.mark.parametrize(
    ("old", "message"),
    [
        ("ground.compiled=true", r"the key ground\.compiled is now called ground\.compile"),
        ("ground.precision=bfloat16", r"now written ground\.precision=bf16"),
        ("ground.device=null", r"now written ground\.device=auto"),
        ("score.device=null", r"now written score\.device=auto"),
    ],
)
def test_an_old_key_or_value_is_an_error_that_names_the_new_one(old: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_config(["input=in", "output=out", old])


def test_the_trainer_reads_the_shards(output: Path, tmp_path: Path) -> None:
    config = DataConfig(shards=str(output), workers=0)
    loader = Loader(config, tokenizer=Tokenizer([]), size_px=32, batch=4, needs=frozenset({"boxes", "parse"}))
    batch = next(iter(loader))
    assert batch.images.shape == (4, 3, 32, 32)
    assert batch.box_images is not None
    assert loader.n_bad == 0
    loader.close()
    assert run(tmp_path / "run", f"shards={output}", "batch_size=4", "steps=2", "optim.warmup_steps=0") == 0


def test_glip_trains_on_the_images_of_grit(output: Path) -> None:
    urls = list_training_shards(str(output))
    assert [Path(url).name for url in urls] == ["00000.tar", "00001.tar"]
    examples = [example for url in urls for example in read_examples(url)]
    assert len(examples) == 8
    assert all(decode(image).shape[2] == 3 for image in read_images(examples))


def test_arrow_files_keep_every_column_that_readers_use(output: Path) -> None:
    table = pa.ipc.open_file(pa.memory_map(str(output / "arrow" / "00000.arrow"))).read_all()
    assert {"status", "reason", "caption", "tokens", "noun_chunks", "boxes", "box_scores"} <= set(table.schema.names)
