"""Settings of the ground stage."""

from dataclasses import dataclass
from typing import Literal

from common.config import check_range, runtime
from common.devices import Precision, check_device


@dataclass(frozen=True, kw_only=True)
class GroundConfig:
    """The network that locates phrases in images."""

    # miniature; a GLIP folder or weight file; a folder of a Grounding DINO or OWLv2 model of transformers;
    # owner/name@commit of any of these on the Hugging Face hub; if the repository contains several weight files, append
    # the name of one: owner/name@commit/file.pth; or the URL of a folder, or of a file, with #sha256=... (docs/glip.md)
    grounder: str = "miniature"
    # vocabulary of GLIP: a vocab.txt, its URL, or owner/name@commit of a repository that contains one; null: the
    # vocab.txt beside the weights
    vocabulary: str | None = None
    # device of the network: auto, cpu, cuda or cuda:N; auto: cuda if there is a GPU, else cpu
    device: str = runtime("auto")
    # number format of the network: auto, fp32, bf16 or fp16; auto: bf16 on a GPU that supports it (except for Grounding
    # DINO, which needs fp32), else fp32
    precision: Precision = runtime("auto")
    # compile the network (of GLIP, only the image tower) with torch.compile; takes minutes for each image size, so use
    # it for long runs on a GPU
    compile: bool = runtime(False)
    # maximum number of images in a batch; a batch contains only images of the same size (GLIP: the same padded size)
    batch_size: int = runtime(8)
    # number of consecutive shards whose images share batches, of grounder and scorer, on Ray: the more, the fewer batches
    # are incomplete, and the more shards are computed again after an interruption; null: 16 if the model workers have
    # GPUs, else 1
    batch_shards: int | None = runtime(None)
    # minimum grounding score of a stored box, 0 to 1; score.min_score decides which boxes are kept
    floor: float = 0.1
    # maximum intersection over union (IoU) of two boxes of an image, 0 to 1; of two boxes with a larger IoU, the one
    # with the lower score is removed, even if their phrases differ
    nms_iou: float = 0.6
    # text prompt of GLIP: caption (the full caption) or phrases (a list of the caption's noun chunks)
    prompt: Literal["caption", "phrases"] = "caption"

    def __post_init__(self) -> None:
        check_range(self, "batch_size", "batch_shards", least=1)
        check_range(self, "floor", "nms_iou", least=0, most=1)
        check_device(self)
