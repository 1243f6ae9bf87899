"""Modules that start quickly: they import no library that only models, parsers or clusters need."""

import subprocess
import sys

import pytest

MODELS = ("torch", "torchvision", "transformers", "spacy", "thinc", "timm", "huggingface_hub", "open_clip")
HEAVY = (*MODELS, "ray", "pandas", "scipy", "matplotlib", "s3fs", "duckdb")


@pytest.mark.parametrize(
    ("modules", "heavy"),
    [
        ("pipeline.job, pipeline.compute, pipeline.provenance", HEAVY),
        ("pipeline.on_ray.driver, pipeline.on_ray.run", [name for name in HEAVY if name != "ray"]),
        ("pipeline.on_ray.remote, pipeline.run", [name for name in HEAVY if name != "ray"]),
        ("pipeline.read.stage, pipeline.download.stage, pipeline.captions.stage, pipeline.write.stage", HEAVY),
        ("pipeline.verify.__main__, pipeline.report.__main__, pipeline.derive.reshard", HEAVY),
    ],
    ids=["job", "driver on Ray", "task on Ray", "stages without a model", "commands"],
)
def test_what_needs_no_model_imports_no_library_of_models(modules: str, heavy: list[str]) -> None:
    code = f"import sys, {modules}; print([name for name in {tuple(heavy)!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
