"""No secret of a URL in any file of an output."""

import dataclasses
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from hypergrit_common.errors import UserError
from pipeline import grit
from pipeline.config import load_config
from pipeline.output.manifest import plan_json
from pipeline.output.write.samples import remove_url_secrets
from pipeline.read.plan import plan_shards
from pipeline.run.provenance import check_no_query
from schemas.files import FILES
from tests.pipeline.jobs import run_job


@pytest.mark.parametrize("strip", [False, True])
def test_no_file_of_a_job_holds_the_password_of_a_url(tmp_path: Path, strip: bool) -> None:
    urls = ["http://ann:hunter2@127.0.0.1/1.jpg?sig=tok3n", "https://ann:hunter2@[::1]/2.jpg"]
    rows = [{"url": url, "caption": f"a dog {url}", "seen_at": f"{url} twice", "n": 1} for url in urls]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    output = tmp_path / "out"
    assert (
        run_job(tmp_path / "pairs.jsonl", output, f"write.strip_url_queries={str(strip).lower()}") == 4
    )  # no row kept
    files = [path for path in output.rglob("*") if path.is_file()]
    assert {path.parent.name for path in files} >= set(FILES)
    assert not [path.name for path in files if b"hunter2" in path.read_bytes()]
    captions = pq.read_table(output / "grit/00000.parquet")["caption"].to_pylist()
    assert captions[0] == "a dog http://127.0.0.1/1.jpg?sig=tok3n"  # queries of captions stay
    signed = [path for path in files if path.parent.name == "_manifests" and b"tok3n" in path.read_bytes()]
    assert not signed
    urls = pq.read_table(output / "grit/00000.parquet").select(["url", "extra", "error_message"])
    assert ("tok3n" in str(urls.to_pylist())) != strip


def test_other_values_and_queries_of_captions_are_not_changed() -> None:
    row = {"url": "http://h/a@b", "caption_original": "ann@h: http://h/?x=1 is a page", "extra": None, "n": 1}
    assert remove_url_secrets(row, strip_query=True) == row


def test_given_boxes_keep_their_phrases_if_a_password_leaves_the_original_caption() -> None:
    text = "a cat, http://ann:hunter2@h/ or http://u@h/, a dog"
    phrases = ("a cat", "h/ or", "a dog", "http://ann:hunter2@h/")
    boxes = [{"start": text.index(p), "end": text.index(p) + len(p), "score": 0.5} for p in phrases]
    row = remove_url_secrets({"caption_original": text, "given_noun_chunks": boxes}, strip_query=False)
    assert row["caption_original"] == "a cat, http://h/ or http://h/, a dog"
    found = [row["caption_original"][box["start"] : box["end"]] for box in row["given_noun_chunks"]]
    assert found == ["a cat", "h/ or", "a dog", "http://h/"]


def test_the_plan_in_a_manifest_has_no_password(tmp_path: Path) -> None:
    (tmp_path / "pairs.csv").write_text("url,caption\nhttp://h/1.jpg,a dog\n")
    config = load_config([f"input={tmp_path / 'pairs.csv'}", f"output={tmp_path / 'out'}"])
    (plan,) = plan_shards(config.input, 4, None, config.read)
    piece = dataclasses.replace(plan.pieces[0], path="https://ann:hunter2@h/pairs.csv")
    assert "hunter2" not in json.dumps(plan_json(dataclasses.replace(plan, pieces=(piece,))))


@pytest.mark.parametrize("prefix", ["", "simplecache::"])
def test_an_input_with_a_query_is_refused_if_queries_are_removed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], prefix: str
) -> None:
    output, url = tmp_path / "out", f"{prefix}http://127.0.0.1:9/pairs.csv?sig=tok3n&f=.csv"
    command = [f"input={url}", f"output={output}", "ray.runner=local", "write.strip_url_queries=true"]
    assert grit.main(command) == 2
    error = capsys.readouterr().err
    assert "tok3n" not in error
    assert error.count("\n") == 1
    assert "the input URL http://127.0.0.1:9/pairs.csv has a query" in error
    assert "copy the file" in error
    assert not output.exists()


def test_a_listed_file_with_a_query_is_refused_if_queries_are_removed(tmp_path: Path) -> None:
    files = ["http://h/0.csv", "http://h/1.csv?sig=tok3n"]
    config = load_config(["input=http://h/", f"output={tmp_path}", "write.strip_url_queries=true"])
    with pytest.raises(UserError, match=r"http://h/1\.csv has a query") as caught:
        check_no_query(config, files)
    assert "tok3n" not in str(caught.value)
    check_no_query(config, files[:1])
    check_no_query(load_config(["input=http://h/", f"output={tmp_path}"]), files)
    check_no_query(config, ["s3://bucket/part-?.csv", "/data/part-?.csv"])  # wildcards


def test_a_message_with_a_member_name_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "pairs.csv").write_text("\x1b[2Jurl\u202e,name\nhttp://h/1.jpg,a dog\n")
    assert run_job(tmp_path / "pairs.csv", tmp_path / "out") == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "\\x1b[2Jurl\\u202e" in error
