"""Settings of the ground stage."""

from dataclasses import dataclass
from typing import Literal

from common.config import check_range, runtime
from common.devices import Precision, check_device


@dataclass(frozen=True, kw_only=True)
class GroundConfig:
    """The network that locates phrases in images."""

    # miniature; a GLIP folder or weight file; a folder of a Grounding DINO or OWLv2 model of transformers;
    # owner/name@commit of any of these on the Hugging Face hub, followed by /file.pth if the repository holds several
    grounder: str = "miniature"
    # GLIP's word pieces: a vocab.txt, or owner/name@commit that contains one; null: the file beside the weights
    vocabulary: str | None = None
    # device of the network: auto, cpu, cuda or cuda:N; auto: cuda if there is a GPU, else cpu
    device: str = runtime("auto")
    # number format of the network: auto, fp32, bf16 or fp16; auto: bf16 on a GPU if the network tolerates it, else fp32
    precision: Precision = runtime("auto")
    # compile the image tower with torch.compile; takes minutes for each image size, so use it for long runs on a GPU
    compile: bool = runtime(False)
    # maximum number of images in a batch; the images of a batch have the same size
    batch_size: int = runtime(8)
    # lowest grounding score of a stored box, 0 to 1; score.min_score decides which boxes are kept
    floor: float = 0.1
    # largest overlap (intersection over union, 0 to 1) of two boxes of an image; above it the box with the lower score
    # is removed, even if the phrases differ
    nms_iou: float = 0.6
    # text that GLIP reads. caption: the full caption; phrases: a list of its noun chunks
    prompt: Literal["caption", "phrases"] = "caption"

    def __post_init__(self) -> None:
        check_range(self, "batch_size", least=1)
        check_range(self, "floor", "nms_iou", least=0, most=1)
        check_device(self)
