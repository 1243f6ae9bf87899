"""Settings of the ground stage; load the grounder that they name, and read its calibrated score threshold."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final, cast

from hypergrit_common.config import check_range, reaches, runtime
from hypergrit_common.devices import Precision, check_device, pick_device
from hypergrit_common.endpoint import OPENAI, parse_endpoint
from hypergrit_common.errors import UserError
from hypergrit_common.lazy import is_plugin, load_plugin
from pipeline.models import (
    HubName,
    calibrated_threshold,
    check_available,
    fetch,
    local_model,
    parse_hub_name,
    read_model_config,
)
from pipeline.stages.ground.endpoint import KEY, EndpointGrounder
from pipeline.stages.ground.grounder import Grounder
from schemas.manifest import NO_MODEL

MINIATURE: Final = Path(__file__).parents[3] / "demo" / "weights" / "glip"
grounder_path: Final = partial(local_model, miniature=MINIATURE)
"""Path of the files of `GroundConfig.grounder` on this machine."""
CALIBRATED: Final = (("thresholds", "score"), ("detect", "score_threshold"))
"""Keys (group, key) of a model's config.json that may hold its calibrated threshold, in order of precedence."""
SCORE_THRESHOLD: Final = 0.65
"""Score threshold of a model without calibration: the value that GRIT uses for GLIP (Kosmos-2, section 2.1)."""


@dataclass(frozen=True, kw_only=True)
class GroundConfig:
    """The network that locates phrases in images (`ground`).

    Raises:
        UserError: a value is out of its range, `device` has another form, or `grounder` is no valid endpoint.
    """

    # miniature; a GLIP folder or weight file; a folder of an LLMDet, MM Grounding DINO, Grounding DINO, OWLv2 or SAM 3
    # model of transformers; owner/name@commit of any of these on the Hugging Face hub; if the repository contains several
    # weight files, append the name of one: owner/name@commit/file.pth; the URL of a folder, or of a file, with
    # #sha256=... (docs/models.md); openai:URL#MODEL, a vision-language model at an OpenAI-compatible endpoint; module:Class
    # of your own (docs/extending.md); or none: rows keep the boxes of the input, all others are pairs
    grounder: str = reaches("miniature", NO_MODEL)
    """The miniature knows only the drawings of the demo; docs/models.md compares others."""
    # vocabulary of GLIP: a vocab.txt, its URL, or owner/name@commit of a repository that contains one; null: the
    # vocab.txt beside the weights
    vocabulary: str | None = reaches(None)
    """Released GLIP files contain none."""
    # device of the network: auto, cpu, cuda or cuda:N; auto: cuda if there is a GPU, else cpu
    device: str = runtime("auto")
    # number format of the network: auto, fp32, bf16 or fp16; auto: bf16 on a GPU that supports it (except for Grounding
    # DINO and LLMDet, which need fp32), else fp32
    precision: Precision = runtime("auto")
    # maximum number of images in a batch; a batch contains only images of the same size (GLIP: the same padded size)
    batch_size: int = runtime(8)
    """Images, at least 1. Ours."""
    # minimum grounding score of a stored box, 0 to 1; score.min_score decides which boxes are kept
    floor: float = 0.1
    """Score in [0, 1]. Ours, below the 0.65 of GRIT, so that thresholds can be lowered later without a model."""
    # keep rows without a box as pairs of image and caption, beside rows with boxes; always so with grounder=none
    keep_pairs: bool = False
    """False: rows without a box are dropped, as in GRIT (Kosmos-2, section 2.1) and HyCoCLIP (appendix A)."""
    # ground the referring expressions too: a box of a noun chunk has the expression of the chunk only if the best box of
    # the expression overlaps it; the others stand for the chunk alone. Rows with given boxes keep their expressions
    check_expressions: bool = False
    """False: an expression has the boxes of its noun chunk, as in GRIT (Kosmos-2, section 2.1)."""
    # minimum intersection over union of the two boxes, 0 to 1
    min_expression_iou: float = 0.5
    """A share in [0, 1]. Ours: the usual limit of a correct box."""

    nms_iou: ClassVar[float] = 0.6
    """Intersection over union of two boxes of an image above which the one with the lower score is removed, even if their
    phrases differ: the value of GLIP's released code."""

    def __post_init__(self) -> None:
        check_range(self, "batch_size", least=1)
        check_range(self, "floor", "min_expression_iou", least=0, most=1)
        check_device(self)
        if self.grounder.startswith(OPENAI):
            parse_endpoint(KEY, self.grounder)
        if self.grounder == NO_MODEL and self.check_expressions:
            raise UserError("check_expressions needs a grounder; give one, or leave out the check")

    @property
    def keeps_pairs(self) -> bool:
        """True if rows without a box are kept."""
        return self.keep_pairs or self.grounder == NO_MODEL


def make_grounder(config: GroundConfig) -> Grounder:
    """Load the grounder of a configuration: a model, in evaluation mode on the device, or a class of the user.

    Args:
        config: settings; `grounder` is not "none". The number format "auto" is fp32 for Grounding DINO and its relatives.

    Returns:
        The grounder, ready for batches.

    Raises:
        UserError: the model or the device does not exist, the model is damaged or of another kind, or the class of the
            user cannot be imported or is no Grounder.
    """
    if is_plugin(config.grounder):
        return cast(Grounder, load_plugin(config.grounder, Grounder, "grounder")(config))
    if config.grounder.startswith(OPENAI):
        return EndpointGrounder(config.grounder, config.floor)
    path, device = grounder_path(config.grounder), pick_device(config.device, key="ground.device")
    if is_transformers(path):
        from pipeline.stages.ground.hf_grounders import load_hf_grounder

        return load_hf_grounder(path, device, config.floor, precision=config.precision)
    from pipeline.stages.ground.glip.predict import load_glip_grounder

    vocabulary, precision = config.vocabulary, config.precision
    return load_glip_grounder(path, device, config.floor, vocabulary=vocabulary, precision=precision)


def is_transformers(grounder: str) -> bool:
    """Return True for a folder or hub name of a transformers model, False for a GLIP model.

    A hub name without a commit is a transformers model, since hub names of GLIP models must contain a commit.
    """
    path = Path(grounder)
    if path.exists():
        return "model_type" in read_model_config(path)
    if "@" not in grounder:
        return True
    name = parse_hub_name(grounder)
    return name is None or (name.file is None and "model_type" in hub_config(name))


def check_glip_files(config: GroundConfig) -> None:
    """Check that a GLIP folder or weight file on this machine has all files that loading it needs.

    Args:
        config: settings; models of other kinds and places pass.

    Raises:
        UserError: model.safetensors or the vocabulary is missing.
    """
    path = Path(config.grounder)
    if not path.exists() or is_transformers(config.grounder):
        return
    needed = [path / "model.safetensors"] if path.is_dir() else []
    if not config.vocabulary:
        needed.append((path if path.is_dir() else path.parent) / "vocab.txt")
    if missing := [file for file in needed if not file.exists()]:
        raise UserError(
            f"grounder={config.grounder}: {missing[0]} does not exist; a GLIP folder holds config.json, vocab.txt and "
            "model.safetensors, and a weight file has its vocab.txt beside it, or in ground.vocabulary (docs/models.md)"
        )


def hub_config(name: HubName) -> dict[str, Any]:
    """Return the config.json of a hub repository, or {} if it has none."""
    check_available("grounder", str(name))
    return read_model_config(fetch(name, ["config.json"]))


def score_threshold(grounder: str) -> float:
    """Return the calibrated score threshold of a grounder, or SCORE_THRESHOLD if it has none.

    Raises UserError if the threshold in its config.json is not a number from 0 to 1.
    """
    path = grounder_path(grounder)
    name = parse_hub_name(path) if "@" in path and not Path(path).exists() else None
    config = hub_config(name) if name else read_model_config(Path(path))
    return calibrated_threshold(config, CALIBRATED, otherwise=SCORE_THRESHOLD, most=1, model=f"grounder {grounder!r}")
