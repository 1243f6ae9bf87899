"""Training with an output in S3: checkpoints, resuming on another machine, and preemption."""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import boto3
import pytest
from safetensors.torch import load

from hypergrit_common.errors import UserError
from tests.patience import PATIENCE_S
from tests.trainer.data.loading import small_loader, take
from tests.trainer.data.samples import train_files, write_shards
from tests.trainer.small_run import SMALL, write_data
from trainer import train
from trainer.checkpoints.folder import MARK, RunFolder
from trainer.training import loop

BUCKET = "runs"


@pytest.fixture
def bucket(server: str) -> Any:
    client = boto3.client("s3", endpoint_url=server)
    client.create_bucket(Bucket=BUCKET)
    yield client
    found = client.list_objects_v2(Bucket=BUCKET).get("Contents", [])
    for entry in found:
        client.delete_object(Bucket=BUCKET, Key=entry["Key"])


def names(client: Any, prefix: str) -> list[str]:
    found = client.list_objects_v2(Bucket=BUCKET, Prefix=f"{prefix}/").get("Contents", [])
    return sorted(entry["Key"].removeprefix(f"{prefix}/") for entry in found)


def read(client: Any, name: str) -> bytes:
    content: bytes = client.get_object(Bucket=BUCKET, Key=name)["Body"].read()
    return content


def arguments(tmp_path: Path, name: str) -> list[str]:
    write_data(tmp_path / "run")
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    shards, merges = f"shards={tmp_path / 'shards'}", f"tokenizer={tmp_path / 'merges.txt'}"
    return [*SMALL, shards, merges, f"output=s3://{BUCKET}/{name}", "save.keep=2"]


def test_a_run_preempted_in_s3_resumes_on_another_machine_with_the_same_result(
    tmp_path: Path, bucket: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train.main(arguments(tmp_path, "whole")) == 0
    real_start = loop.start_step

    def start(*values: Any, **named: Any) -> Any:
        pending = real_start(*values, **named)
        if pending.number == 7:
            os.kill(os.getpid(), signal.SIGUSR1)
        return pending

    with monkeypatch.context() as patched:
        patched.setattr(loop, "start_step", start)
        started = time.monotonic()
        assert train.main(arguments(tmp_path, "parts")) == 128 + signal.SIGUSR1
        assert time.monotonic() - started < PATIENCE_S
    assert "stopped at step 7 of 12 after saving a checkpoint" in capsys.readouterr().err
    assert f"checkpoints/step_00000007/{MARK}" in names(bucket, "parts")
    assert train.main(arguments(tmp_path, "parts")) == 0  # the temporary folder of the first part is gone
    assert load(read(bucket, "parts/model/model.safetensors")).keys()
    for file in ("model/model.safetensors", "checkpoints/step_00000012/state.safetensors"):
        assert read(bucket, f"parts/{file}") == read(bucket, f"whole/{file}")
    steps = [json.loads(line)["step"] for line in read(bucket, "parts/metrics.jsonl").splitlines()]
    assert steps == list(range(1, 13))
    checkpoints = {name.split("/")[1] for name in names(bucket, "parts") if name.startswith("checkpoints/")}
    assert checkpoints == {"step_00000010", "step_00000012"}
    assert not list(Path(os.environ.get("TMPDIR", "/tmp")).glob("hypergrit-run-*/checkpoints"))


def test_a_checkpoint_that_was_not_uploaded_completely_is_ignored_and_removed(tmp_path: Path, bucket: Any) -> None:
    assert train.main([*arguments(tmp_path, "cut"), "steps=6"]) == 0
    bucket.delete_object(Bucket=BUCKET, Key=f"cut/checkpoints/step_00000006/{MARK}")
    (tmp_path / "copy").mkdir()
    folder = RunFolder(f"s3://{BUCKET}/cut", tmp_path / "copy")
    folder.fetch()
    assert folder.newest_checkpoint() == f"s3://{BUCKET}/cut/checkpoints/step_00000005"
    newer = (tmp_path / "copy/checkpoints/step_00000005").rename(tmp_path / "copy/checkpoints/step_00000009")
    folder.upload_checkpoint(newer, keep=2)
    checkpoints = {name.split("/")[1] for name in names(bucket, "cut") if name.startswith("checkpoints/")}
    assert checkpoints == {"step_00000005", "step_00000009"}


def test_a_bucket_that_does_not_exist_is_an_error_that_names_the_output(
    tmp_path: Path, server: str, capsys: pytest.CaptureFixture[str]
) -> None:
    output = arguments(tmp_path, "run")
    output[-2] = "output=s3://no-such-bucket/run"
    assert train.main([*output, "steps=5"]) == 2
    assert "s3://no-such-bucket/run" in capsys.readouterr().err


def test_a_shard_replaced_by_one_of_equal_size_stops_the_run(bucket: Any, tmp_path: Path) -> None:
    def upload(name: str) -> None:
        content = write_shards(tmp_path / name, [8], lambda n: train_files(n) | {"child.txt": name.encode()})
        bucket.put_object(Bucket=BUCKET, Key="shards/00000.tar", Body=(content / "00000.tar").read_bytes())

    upload("cat")
    assert len(take(small_loader(f"s3://{BUCKET}/shards"), 2)) == 2
    source = small_loader(f"s3://{BUCKET}/shards")
    upload("dog")
    with pytest.raises(UserError, match=r"s3://runs/shards/00000\.tar was replaced during the run; restore it"):
        next(iter(source))
