"""Modules that start quickly: they import no library that only models, parsers or clusters need."""

import subprocess
import sys

import pytest

MODELS = ("torch", "torchvision", "transformers", "spacy", "thinc", "timm", "huggingface_hub", "open_clip")
HEAVY = (*MODELS, "ray", "pandas", "scipy", "matplotlib", "s3fs", "duckdb")


@pytest.mark.parametrize(
    ("modules", "heavy"),
    [
        ("pipeline.run.job, pipeline.run.provenance", HEAVY),
        ("pipeline.run.ray_driver, pipeline.run.ray", [name for name in HEAVY if name != "ray"]),
        ("pipeline.run.ray_workers, pipeline.run.steps", [name for name in HEAVY if name != "ray"]),
        (
            "pipeline.read.source, pipeline.stages.download.stage, pipeline.stages.captions, pipeline.output.write.stage",
            HEAVY,
        ),
        ("pipeline.commands.verify, pipeline.commands.explore, pipeline.commands.rewrite", HEAVY),
    ],
    ids=["job", "driver on Ray", "task on Ray", "stages without a model", "commands"],
)
def test_what_needs_no_model_imports_no_library_of_models(modules: str, heavy: list[str]) -> None:
    code = f"import sys, {modules}; print([name for name in {tuple(heavy)!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
