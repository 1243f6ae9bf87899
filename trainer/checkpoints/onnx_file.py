"""Write the two encoders of a model as ONNX files, with the lift into its space inside. Needs the extra `onnx`."""

from pathlib import Path

import torch
from torch import Tensor, nn

from hypergrit_common.errors import UserError
from hypergrit_common.json_file import write_object
from trainer.batch import check_finite
from trainer.checkpoints.model import LoadedModel
from trainer.checkpoints.tokenizer_files import write_tokenizer
from trainer.encoders.cached import CachedImage, CachedText
from trainer.models.dual_encoder import DualEncoder
from trainer.models.registry import model_name


class Rows(nn.Module):
    """An encoder whose lifted points are rows [b d]; those of k factors are concatenated, as by `trainer.Model`."""

    def __init__(self, model: DualEncoder, side: str) -> None:
        super().__init__()
        self.model, self.side = model, side

    def forward(self, inputs: Tensor) -> Tensor:
        """Points [b d] of images [b 3 s s] in [0, 1], or of token ids [b l]."""
        points = self.model.encode_image(inputs) if self.side == "image" else self.model.encode_text(inputs)
        return points if points.ndim == 2 else points.movedim(0, 1).flatten(1)


def write_onnx(found: LoadedModel, out: Path) -> None:
    """Write image.onnx, text.onnx, model.json and the tokenizer's file, if it has one, to the folder `out`.

    Batches have any size; texts are padded to the context. Raises UserError without the packages onnx and onnxscript,
    NotFiniteError if points are not finite, and OSError if the folder cannot be written.
    """
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise UserError(
            f"ONNX files need the extra onnx ({error}); pip install '.[onnx]' in the folder of the package"
        ) from error
    model = found.model.eval().requires_grad_(False)
    for tower in (model.visual, model.textual):
        if isinstance(tower, CachedImage | CachedText):
            tower.frozen()  # loaded here: the export traces without storage
    size, length = model.config.image.size_px, model.config.text.context_length
    ids = torch.ones(2, length, dtype=torch.int64)
    inputs = {"image": torch.rand(2, 3, size, size), "text": ids}
    out.mkdir(parents=True, exist_ok=True)
    for side, example in inputs.items():
        with torch.no_grad():
            rows = Rows(model, side).eval()
            check_finite(rows(example), f"{side}s")
            torch.onnx.export(
                rows,
                (example,),
                str(out / f"{side}.onnx"),
                input_names=[side],
                output_names=["points"],
                dynamic_shapes=({0: torch.export.Dim("batch")},),
                dynamo=True,
                external_data=False,
                verbose=False,
            )
    curvature = getattr(model, "curv", None)
    facts = {
        "model": model_name(model),
        "image": {"size_px": size, "mode": found.preprocess.mode, "range": [0, 1], "layout": "RGB [batch 3 size size]"},
        "text": {
            "context_length": length,
            "pad_id": found.tokenizer.pad_id,
            "tokenizer": write_tokenizer(found.tokenizer, out),
        },
        "points": {
            "width": model.config.embed_dim,
            "curvature": None if curvature is None else curvature.exp().flatten().tolist(),
        },
    }
    write_object(facts, out / "model.json")
