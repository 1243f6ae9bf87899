"""The score of docs/extending.md: its lines, added where the page says, give column, threshold, histogram and slider."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa

from pipeline.stages.score.filters import ScoreConfig
from schemas.scores import CROP_SCORES, ROW_COLUMNS, SCORES
from tests.docs.extending import PAGE, ROOT, dropped, read_json

SECTION = PAGE[PAGE.index("### A score\n") : PAGE.index("### An input format\n")]
PLACES = {
    "schemas/scores.py": ")  # fmt: skip\n",
    "pipeline/stages/score/filters.py": "    # compute all scores of all boxes",
    "pipeline/stages/score/stage.py": "        raise NotImplementedError",
}
"""File -> the text before which the page adds lines."""
PROGRAM = """\
import json, sys
from importlib.util import find_spec, module_from_spec

for name, code in json.loads(sys.argv[1]).items():
    spec = find_spec(name)
    sys.modules[name] = module = module_from_spec(spec)
    exec(compile(code, spec.origin, "exec"), vars(module))

from pipeline.commands import explore, rewrite
from tests.pipeline.here import running_here
from tests.pipeline.jobs import WITHOUT_MODELS, run_job

tars, output = sys.argv[2:]
with running_here():
    assert run_job(tars, f"{output}/out", *WITHOUT_MODELS, "download.resize.kernel=area", "score.min_contrast=0.1") == 0
    source = [f"source={output}/out", f"output={output}/strict", "score.min_contrast=1", "ray.runner=local"]
    assert rewrite.main(source) == 4
assert explore.main([f"{output}/out", f"static={output}/page", f"cache={output}/cache"]) == 0
"""


def test_every_score_has_a_setting_that_is_null_and_all_but_those_of_phrases_a_histogram() -> None:
    config = ScoreConfig()
    assert {getattr(config, score.setting) for score in SCORES} == {None}
    assert {score.of for score in SCORES if not score.histogram} == {"phrase"}
    assert all(score.removed for score in SCORES if score.of != "row")
    assert all(score.doc for score in (*CROP_SCORES, *ROW_COLUMNS.values()))


def test_an_entry_a_setting_and_a_case_make_a_score(tars: Path, tmp_path: Path) -> None:
    assert SECTION.count("\n") <= 30
    patched = {}
    for path, addition in re.findall(r"^# (\S+\.py), .*\n((?: .*\n)+)", SECTION, re.MULTILINE):
        place, code = PLACES[path], (ROOT / path).read_text(encoding="utf-8")
        assert code.count(place) == 1
        patched[path.removesuffix(".py").replace("/", ".")] = code.replace(place, f"{addition}{place}")
    assert len(patched) == len(PLACES)
    command = [sys.executable, "-c", PROGRAM, json.dumps(patched), str(tars), str(tmp_path)]
    subprocess.run(command, check=True, cwd=ROOT, timeout=120)
    rows = pa.ipc.open_file(tmp_path / "out" / "arrow" / "00000.arrow").read_all().to_pylist()
    assert all(0.1 <= row["contrast"] <= 1 for row in rows if row["status"] == "kept")
    assert read_json(tmp_path / "out" / "_manifests" / "00000.json")["provenance"]["thresholds"]["min_contrast"] == 0.1
    stats = read_json(tmp_path / "out" / "stats.json")
    assert stats["histograms"]["contrast"]["n"] == {"images": 9}
    assert ">Contrast<" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert dropped(tmp_path / "strict")["score"] == {"low_contrast": 9}
    site = read_json(tmp_path / "page" / "data" / "site.json")
    (slider,) = [score for score in site["scores"] if score["setting"] == "min_contrast"]
    assert (slider["label"], slider["column"]) == ("Contrast", "contrast")
    (index,) = (tmp_path / "page" / "data").glob("*/rows-00000.arrow")
    assert pa.ipc.open_file(index).read_all()["contrast"].to_pylist()[0] == rows[0]["contrast"]
