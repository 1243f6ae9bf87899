import io
import json
import tarfile
from typing import Any

import pytest

from hypergrit_common.layouts import find_layout, read_sample
from hypergrit_common.samples import BadSample, Region, Sample, SampleFiles, sample_key, sample_members
from schemas.training import Layout
from tests.trainer.data.samples import Files, grit_files, jpeg, pair_files, tar_bytes, train_files

BOXES, PARSE, NOTHING = frozenset({"boxes"}), frozenset({"parse"}), frozenset[str]()


def one_sample(files: Files) -> bytes:
    """A tar of one sample, with the key `key`."""
    return tar_bytes([("key", files)])


def read(files: Files, needs: frozenset[str] = NOTHING, layout: Layout | None = None) -> Sample:
    data = one_sample(files)
    return read_sample(data, layout or "auto", needs)


@pytest.mark.parametrize(
    ("files", "layout"),
    [
        (train_files(1), "train"),
        (train_files(1, with_json=False), "hycoclip"),
        (grit_files(1), "grit"),
        ({**grit_files(1), "txt": b"a cat 1"}, "grit"),
        (pair_files(1), "pairs"),
        ({"jpg": jpeg(), "json": b'{"caption": "a cat", "subreddit": "cats"}'}, "pairs"),
    ],
)
def test_layout_is_detected_from_the_files(files: Files, layout: Layout) -> None:
    assert find_layout(SampleFiles(one_sample(files))) == layout


def test_train_sample_has_boxes_and_parse() -> None:
    files = train_files(7)
    sample = read(files, BOXES | PARSE)
    assert (sample.key, sample.caption) == ("key", "cat 7")
    assert [(box.phrase, box.image) for box in sample.boxes] == [
        ("box 0 of 7", files["parent000.jpg"]),
        ("box 1 of 7", files["parent001.jpg"]),
    ]
    assert sample.words is not None
    assert [(word.start, word.end, word.head, word.dep) for word in sample.words] == [
        (0, 3, 0, "ROOT"),
        (4, 5, 0, "nummod"),
    ]


def test_hard_negatives_are_those_of_their_box_if_they_are_needed() -> None:
    def read_boxes(negatives: Any, needs: frozenset[str]) -> list[tuple[str, ...]]:
        content = json.dumps({"hard_negatives": negatives}).encode()
        return [box.hard_negatives for box in read({**train_files(7), "json": content}, needs).boxes]

    needs = BOXES | {"hard_negatives"}
    assert read_boxes([{"parent": 1, "texts": ["a cat", "no box"]}], needs) == [(), ("a cat", "no box")]
    assert read_boxes([{"parent": 1, "texts": ["a cat"]}], BOXES) == [(), ()]
    for wrong in (5, [5], [{"parent": 0}], [{"parent": 0, "texts": [5]}]):
        with pytest.raises(BadSample, match="each must have parent and texts"):
            read_boxes(wrong, needs)


def test_boxes_and_parse_are_not_read_unless_needed() -> None:
    sample = read({**train_files(1), "numparents.txt": b"?", "json": b"{"})
    assert (sample.boxes, sample.words) == ((), None)


def test_grit_boxes_equal_those_of_hycoclips_conversion() -> None:
    chunk, small, late = [0, 5, 0.1, 0.2, 0.9, 0.8, 0.9], [2, 5, 0.0, 0.0, 0.1, 0.1, 0.9], [2, 5, 0.0, 0.0, 1, 1, 0.8]
    full = [0.0, 7.9, -0.1, 0.0, 1.0, 1.2, 0.7]
    fields: dict[str, Any] = {"noun_chunks": [chunk, small, chunk, late], "ref_exps": [full]}
    sample = read(grit_files(1, **fields), BOXES)
    assert sample.pad_to_square
    # The image has 128 x 96 px, corners are rounded down. `late` is dropped with `small`, the first box of the same
    # phrase.
    assert [(box.phrase, box.region) for box in sample.boxes] == [
        ("a cat", Region(12, 19, 103, 57)),
        ("a cat 1", Region(0, 0, 128, 96)),
    ]


def without(files: Files, name: str) -> Files:
    return {key: value for key, value in files.items() if key != name}


def test_subreddit_is_read_separately_from_the_caption() -> None:
    sample = read({"jpg": jpeg(), "json": b'{"caption": "my cat", "subreddit": "cats"}'})
    assert (sample.caption, sample.subreddit) == ("my cat", "cats")
    files = train_files(1)
    with_subreddit = files | {"json": json.dumps(json.loads(files["json"]) | {"subreddit": "cats"}).encode()}
    for needs in (NOTHING, BOXES):
        assert read(with_subreddit, needs).subreddit == "cats"
        assert read(files, needs).subreddit is None
        assert read(grit_files(1, subreddit="cats"), needs).subreddit == "cats"


OTHER_CAPTION = json.dumps(
    {"caption": "another", "tokens": [{"start": 0, "end": 3, "head": 0, "dep": "ROOT"}]}
).encode()
INVALID_HEAD = json.dumps({"tokens": [{"start": 0, "end": 3, "head": 9, "dep": "ROOT"}]}).encode()


@pytest.mark.parametrize(
    ("files", "needs", "layout", "reason"),
    [
        (without(train_files(1), "child.jpg"), NOTHING, "train", "missing_member"),
        (without(train_files(1), "child.txt"), NOTHING, "train", "missing_member"),
        (without(train_files(1), "parent001.jpg"), BOXES, "train", "missing_member"),
        ({**train_files(1), "numparents.txt": b"two"}, BOXES, "train", "missing_member"),
        ({**train_files(1), "numparents.txt": b"0"}, BOXES, "train", "no_boxes"),
        ({**train_files(1), "child.txt": b" \n"}, NOTHING, "train", "no_caption"),
        ({**train_files(1), "child.txt": "ein süßer Bär".encode("cp1252")}, NOTHING, "train", "not_utf8"),
        ({**train_files(1), "parent000.txt": b"a caf\xe9"}, BOXES, "train", "not_utf8"),
        ({**train_files(1), "child.jpg": b"GIF89a"}, NOTHING, "train", "undecodable_image"),
        ({**train_files(1), "json": b"[" * 5000}, PARSE, "train", "bad_json"),
        ({**train_files(1), "json": b"[]"}, PARSE, "train", "bad_json"),
        ({**train_files(1), "json": b"{}"}, PARSE, "train", "no_parse"),
        ({**train_files(1), "json": OTHER_CAPTION}, PARSE, "train", "no_parse"),
        ({**train_files(1), "json": INVALID_HEAD}, PARSE, "train", "no_parse"),
        (train_files(1, with_json=False), PARSE, "hycoclip", "no_parse"),
        (grit_files(1, caption=None), NOTHING, "grit", "no_caption"),
        (grit_files(1, noun_chunks=None), BOXES, "grit", "no_boxes"),
        (grit_files(1, noun_chunks=[[0, 5]]), BOXES, "grit", "bad_json"),
        (grit_files(1, noun_chunks=[[0, 5, "nan", 0, 1, 1, 1]]), BOXES, "grit", "bad_json"),
        (grit_files(1, noun_chunks=7), BOXES, "grit", "bad_json"),
        (without(grit_files(1), "jpg"), NOTHING, "grit", "missing_member"),
        (pair_files(1), BOXES, "pairs", "no_boxes"),
    ],
)
def test_bad_sample_is_rejected_with_a_reason(files: Files, needs: frozenset[str], layout: Layout, reason: str) -> None:
    with pytest.raises(BadSample) as caught:
        read(files, needs, layout)
    assert caught.value.reason == reason


def test_bytes_that_are_not_a_sample_are_rejected_as_damaged() -> None:
    for data in (b"", b"\xff" * 2000, one_sample(train_files(1))[:700]):
        with pytest.raises(BadSample, match="damaged"):
            read_sample(data, "train", NOTHING)


def test_key_is_found_after_a_pax_header_and_in_a_truncated_sample() -> None:
    file = io.BytesIO()
    # webdataset writes pax headers.
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
        info = tarfile.TarInfo("000000007.child.txt")
        info.mtime = 0.5
        tar.addfile(info)
    assert sample_key(file.getvalue()) == "000000007"
    assert sample_key(one_sample(train_files(1))[:700]) == sample_key(one_sample(train_files(1)))


def test_adjacent_samples_with_one_key_are_a_bad_sample() -> None:
    first, second = one_sample(pair_files(1)), one_sample(pair_files(2))
    end = max(member.offset + member.size for member in sample_members(first))
    data = first[: -(-end // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE] + second
    with pytest.raises(BadSample, match="duplicate_key: two adjacent samples share this key: each has a jpg"):
        SampleFiles(data)


def test_files_of_two_keys_are_a_bad_sample() -> None:
    """Members that fit an index by their sizes, but not by their names."""
    data = one_sample(pair_files(1)).replace(b"key.txt", b"kez.txt")
    with pytest.raises(BadSample, match="damaged: the index does not fit the tar: the sample has files of kez too"):
        SampleFiles(data)
