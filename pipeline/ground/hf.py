"""Load Grounding DINO and OWLv2 models of the transformers library as grounders."""

from typing import Any

import torch

from common.devices import Precision, resolve_precision, torch_dtype
from common.errors import UserError
from common.files import check_folder_files
from pipeline.ground.hf_grounders import GroundingDino, Owlv2
from pipeline.ground.hub import fetch, parse_hub_name

HUB_FILES = ["*.json", "*.txt", "*.safetensors", "*.model"]
"""Patterns of the files to download from a hub repository. Pickle files are excluded: they could execute code."""


def load_hf_grounder(
    name: str, device: torch.device, floor: float, *, precision: Precision = "auto", compile: bool = False
) -> GroundingDino | Owlv2:
    """Load the model of a folder or a hub name, `owner/name` or `owner/name@commit`.

    Raises UserError if the model is not found, is damaged or incomplete, or has an unsupported architecture.
    """
    hub = parse_hub_name(name) if "@" in name else None
    kind, model, processor = _load(name, str(fetch(hub, HUB_FILES)) if hub else name)
    model = model.to(device).eval()
    if compile:
        model.compile()
    if precision == "auto" and kind == "grounding-dino":
        precision = "fp32"  # half precision changes the ranking of its queries and the refinement of its boxes
    dtype = torch_dtype(resolve_precision(precision, device))
    return (Owlv2 if kind == "owlv2" else GroundingDino)(model, processor, floor, dtype)


def _load(name: str, path: str) -> tuple[str, Any, Any]:
    """Return the model type, the model and the processor in the folder `path`; error messages contain `name`."""
    from transformers import AutoConfig, AutoModelForZeroShotObjectDetection, AutoProcessor

    try:
        check_folder_files(path)
        kind = AutoConfig.from_pretrained(path, trust_remote_code=False).model_type
        if kind not in ("grounding-dino", "owlv2"):
            raise UserError(
                f"ground.grounder={name!r} is a {kind!r} model; supported are grounding-dino, owlv2 and GLIP folders"
            )
        # safetensors only: a pickle could execute code. float32: weights may be stored in half precision.
        model, report = AutoModelForZeroShotObjectDetection.from_pretrained(
            path, use_safetensors=True, trust_remote_code=False, dtype=torch.float32, output_loading_info=True
        )
        processor = AutoProcessor.from_pretrained(path, trust_remote_code=False)
    except UserError:
        raise
    except Exception as error:  # its type depends on the file that is damaged
        reason = f"{type(error).__name__}: {error!s}".split("\n", 1)[0][:300]
        raise UserError(
            f"ground.grounder={name!r} is neither a usable model folder nor a hub model that can be fetched: {reason}"
        ) from error
    non_finite = [key for key, value in model.named_parameters() if not torch.isfinite(value).all()]
    for defect, keys in (("missing", sorted(report["missing_keys"])), ("not finite", non_finite)):
        if keys:  # transformers initialises missing weights randomly and accepts NaN and infinity
            raise UserError(
                f"ground.grounder={name!r}: {len(keys)} weights are {defect}, such as {', '.join(keys[:5])}; "
                "download or save the model again"
            )
    return kind, model, processor
