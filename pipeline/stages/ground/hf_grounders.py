"""Grounding DINO, MM Grounding DINO (LLMDet), OWLv2 and SAM 3 of transformers as grounders."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any, ClassVar, Final

import torch
from torch import Tensor
from torchvision.ops import box_convert
from transformers.modeling_outputs import BaseModelOutputWithPooling

from hypergrit_common.central import limit_aspect_ratio
from hypergrit_common.devices import Precision, autocast, resolve_precision, torch_dtype
from hypergrit_common.errors import UserError
from hypergrit_common.images import Image
from hypergrit_common.model_files import check_model, loading, panics_as_errors
from hypergrit_common.text import first_line
from hypergrit_common.weights import bounded_by_folder
from pipeline.models import TRIAL, fetch, parse_hub_name, token_limit
from pipeline.stages.ground.grounder import Detection, Grounded, OnCpu, PhraseDrop, Span, apart, pinned, take

SEPARATOR: Final = " . "
"""Text between the phrases of a Grounding DINO prompt; the words of a phrase do not attend to other phrases."""
MAX_PHRASE_CHARS: Final = 1000
"""Longer phrases are dropped before tokenization."""
MAX_ASPECT_RATIO: Final = 20
"""Maximum aspect ratio of the images that are passed to the image processors."""
MAX_SAM3_TOKENS: Final = 32
"""Length of the texts of SAM 3, to which its processor pads them."""
MAX_CACHED_PHRASES: Final = 4096
"""Phrases whose features a SAM 3 keeps: 32 KB each."""


@dataclass(frozen=True, kw_only=True)
class Pass:
    """One call of the network, with some images of the batch and one text for each."""

    rows: list[int]  # indices of the images in the batch
    text: Any  # transformers.BatchEncoding; SAM 3: the phrases
    columns: list[dict[int, list[int]]]
    """For each row: index of a phrase -> its columns of the logits: word pieces (Grounding DINO), a query (OWLv2), or none
    (SAM 3, whose passes have one phrase for each image)."""


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """The network's input for a batch."""

    pixels: dict[str, Tensor]
    sizes: list[tuple[int, int]]  # height, width of each image
    passes: list[Pass]
    dropped: list[dict[int, PhraseDrop]]


class _HfGrounder:
    """Base class of the models: process images, run the network, and convert its output to detections."""

    is_lower: ClassVar[bool] = False
    """True: phrases are passed on in lower case."""
    separators: ClassVar[tuple[str, ...]] = ()
    """Texts that end a phrase of a prompt, besides the tokenizer's own; within a phrase, they are passed on as spaces."""
    is_joint: ClassVar[bool] = False
    """True: the phrases of a pass see each other, so that those that overlap others have passes of their own."""

    def __init__(self, model: Any, processor: Any, floor: float, dtype: torch.dtype = torch.float32) -> None:
        self.model, self.processor, self.floor, self.dtype = model, processor, floor, dtype
        tokens = (getattr(processor.tokenizer, f"{name}_token", None) for name in ("bos", "eos", "cls", "sep"))
        self._breaks = [*self.separators, *filter(None, tokens)]

    @property
    def max_tokens(self) -> int:
        """The maximum number of tokens of a text."""
        config = self.model.config
        return token_limit(self.processor.tokenizer, config.text_config.max_position_embeddings, self._own_limit)

    @property
    def _own_limit(self) -> int | None:
        """Return the number of tokens to which the model itself limits a text; None if it has no limit of its own."""
        return None

    def bucket(self, height: int, width: int) -> tuple[int, int]:
        """Return the image size itself, since the image processors pad each image to the largest one of its batch."""
        return height, width

    def prepare(self, images: Sequence[Image], captions: Sequence[str], spans: Sequence[Sequence[Span]]) -> Prepared:
        """Prepare the images, and the passes of all phrases that can be grounded."""
        texts = [[self._words(c[s:e]) for s, e in row_spans] for c, row_spans in zip(captions, spans, strict=True)]
        dropped = [
            {n: reason for n, text in enumerate(row) if (reason := self._why_dropped(text)) is not None}
            for row in texts
        ]
        groups = zip(*map(apart, spans), strict=True) if self.is_joint else [[range(len(row)) for row in spans]]
        passes = list[Pass]()
        for group in groups:
            kept = [[n for n in row if n not in lost] for row, lost in zip(group, dropped, strict=True)]
            passes += self._passes(texts, kept)
        limited = [limit_aspect_ratio(image, MAX_ASPECT_RATIO) for image in images]
        processed = self.processor.image_processor(limited, return_tensors="pt", input_data_format="channels_last")
        pixels = {name: pinned(value, self.model.device) for name, value in processed.items()}
        sizes = [(image.shape[0], image.shape[1]) for image in limited]
        return Prepared(pixels=pixels, sizes=sizes, passes=passes, dropped=dropped)

    def _words(self, text: str) -> str:
        """Return a phrase as it is passed on, of the same length."""
        text = text.lower() if self.is_lower else text
        for mark in self._breaks:
            text = text.replace(mark, " " * len(mark))
        return text

    def _why_dropped(self, text: str) -> PhraseDrop | None:
        """Return why a phrase cannot be grounded, or None."""
        if len(text) > MAX_PHRASE_CHARS or len(self.processor.tokenizer(text).input_ids) > self.max_tokens:
            return "too_many_word_pieces"
        return None if text.strip() else "no_word_piece"

    def _passes(self, texts: Sequence[Sequence[str]], kept: list[list[int]]) -> list[Pass]:
        """Return the passes for the phrases of each image, of which `kept` has the indices that can be grounded."""
        raise NotImplementedError

    @torch.inference_mode()
    def forward(self, prepared: Prepared) -> tuple[Prepared, list[OnCpu]]:
        """Return the input, and the boxes and logits of each pass."""
        device = self.model.device
        pixels = {name: value.to(device, non_blocking=True) for name, value in prepared.pixels.items()}
        outputs = []
        for item in prepared.passes:
            images = dict(zip(pixels, take(list(pixels.values()), item.rows), strict=True))
            with autocast(self.model.device, self.dtype):
                output = self.model(**images, **item.text.to(device))
            outputs.append(OnCpu([output.pred_boxes, output.logits]))
        return prepared, outputs

    @torch.inference_mode()
    def collect(self, output: tuple[Prepared, list[OnCpu]]) -> list[Grounded]:
        """Return the result of each image."""
        prepared, outputs = output
        found: list[list[Detection]] = [[] for _ in prepared.sizes]
        for item, tensors in zip(prepared.passes, outputs, strict=True):
            centred, logits = tensors.wait()
            boxes = box_convert(centred.float(), "cxcywh", "xyxy")
            probabilities = logits.float().sigmoid()  # [b, boxes, word pieces or queries]
            for k, (row, phrases) in enumerate(zip(item.rows, item.columns, strict=True)):
                for phrase, columns in phrases.items():
                    scores = probabilities[k][:, columns].mean(dim=1)
                    fitted = self._fit(boxes[k], prepared.sizes[row])
                    found[row] += _detections(phrase, fitted, scores, self.floor)
        return [Grounded(boxes=b, dropped=d) for b, d in zip(found, prepared.dropped, strict=True)]

    def _fit(self, boxes: Tensor, size: tuple[int, int]) -> Tensor:
        """Convert the network's boxes [n, 4] to fractions of the image; `size` is its height and width."""
        return boxes


class GroundingDino(_HfGrounder):
    """Grounding DINO (Liu et al., ECCV 2024), and MM Grounding DINO (Zhao et al. 2024), the network of LLMDet (CVPR 2025).

    The score of a phrase is the mean probability of its word pieces.
    """

    is_lower, separators, is_joint = True, (".", "?"), True

    @property
    def _own_limit(self) -> int:
        return int(self.model.config.max_text_len)

    def _passes(self, texts: Sequence[Sequence[str]], kept: list[list[int]]) -> list[Pass]:
        """Join the phrases of each caption into a prompt. Phrases that do not fit into it go into further passes."""
        passes, pending = [], list(kept)
        while any(pending):
            rows = [row for row, indices in enumerate(pending) if indices]
            prompts = [self._prompt(texts[row], pending[row]) for row in rows]
            for row, (phrase_spans, _) in zip(rows, prompts, strict=True):
                pending[row] = pending[row][len(phrase_spans) :]
            passes.append(self._pass(rows, prompts))
        return passes

    def _why_dropped(self, text: str) -> PhraseDrop | None:
        tokenizer = self.processor.tokenizer
        if len(text) > MAX_PHRASE_CHARS:
            return "too_many_word_pieces"
        ids = tokenizer(text + " .", add_special_tokens=False).input_ids[:-1]
        if len(ids) + 3 > self.max_tokens:  # [CLS], the full stop and [SEP]
            return "too_many_word_pieces"
        if not ids:
            return "no_word_piece"
        return "unknown_words" if all(i == tokenizer.unk_token_id for i in ids) else None

    def _prompt(self, phrases: Sequence[str], indices: Sequence[int]) -> tuple[dict[int, Span], str]:
        """Join the first of the phrases `indices` into a prompt; return their spans in it, and the prompt.

        Starts with all phrases and halves their number until the prompt fits.
        """
        count = len(indices)
        while True:
            parts = [phrases[n] for n in indices[:count]]
            text = SEPARATOR.join(parts) + " ."
            if count == 1 or len(self.processor.tokenizer(text).input_ids) <= self.max_tokens:
                starts = accumulate((len(part) + len(SEPARATOR) for part in parts[:-1]), initial=0)
                return {n: (s, s + len(p)) for n, s, p in zip(indices, starts, parts, strict=False)}, text
            count = (count + 1) // 2

    def _pass(self, rows: list[int], prompts: Sequence[tuple[dict[int, Span], str]]) -> Pass:
        # Only the result of the tokenizer, not that of the combined processor, maps characters to word pieces.
        text = self.processor.tokenizer(
            [prompt for _, prompt in prompts], return_tensors="pt", padding=True, truncation=True,
            max_length=self.max_tokens,
        )  # fmt: skip
        columns: list[dict[int, list[int]]] = [{} for _ in rows]
        for k, (phrase_spans, _) in enumerate(prompts):
            for phrase, (start, end) in phrase_spans.items():
                columns[k][phrase] = sorted({text.char_to_token(k, char) for char in range(start, end)} - {None})
        return Pass(rows=rows, text=text, columns=columns)


class Owlv2(_HfGrounder):
    """OWLv2 (Minderer et al., NeurIPS 2023). Each phrase is one text query."""

    def _passes(self, texts: Sequence[Sequence[str]], kept: list[list[int]]) -> list[Pass]:
        """Return a single pass. Images with fewer phrases than others are padded with empty queries."""
        most = max(map(len, kept), default=0)
        if not most:
            return []
        queries = [
            query
            for phrases, indices in zip(texts, kept, strict=True)
            for query in [*(phrases[n] for n in indices), *[""] * (most - len(indices))]
        ]
        padded: dict[str, Any] = {"padding": "max_length", "max_length": self.max_tokens}
        text = self.processor.tokenizer(queries, return_tensors="pt", truncation=True, **padded)
        columns = [{n: [column] for column, n in enumerate(indices)} for indices in kept]
        return [Pass(rows=list(range(len(texts))), text=text, columns=columns)]

    def _fit(self, boxes: Tensor, size: tuple[int, int]) -> Tensor:
        """Convert fractions of the padded image to fractions of the image.

        OWLv2's image processor pads images to a square, at the bottom or at the right.
        """
        height, width = size
        return boxes * torch.tensor([max(height, width) / width, max(height, width) / height]).repeat(2)


class Sam3(_HfGrounder):
    """SAM 3 (Carion et al. 2025): the features of an image are computed once, those of a phrase once for all images.

    The score of a box is the probability of its query times that of the phrase's presence in the image, as in
    transformers' `post_process_object_detection`. Masks are not used.
    """

    def __init__(self, model: Any, processor: Any, floor: float, dtype: torch.dtype = torch.float32) -> None:
        super().__init__(model, processor, floor, dtype)
        self._phrase_features = lru_cache(MAX_CACHED_PHRASES)(self._embed)

    def bucket(self, height: int, width: int) -> tuple[int, int]:
        """Return the same bucket for all sizes: the image processor resizes each image to one size."""
        return 0, 0

    def _passes(self, texts: Sequence[Sequence[str]], kept: list[list[int]]) -> list[Pass]:
        """Return a pass for the first phrases of all images, one for the second ones, and so on."""
        passes = []
        for k in range(max(map(len, kept), default=0)):
            rows = [row for row, indices in enumerate(kept) if k < len(indices)]
            text = [texts[row][kept[row][k]] for row in rows]
            passes.append(Pass(rows=rows, text=text, columns=[{kept[row][k]: []} for row in rows]))
        return passes

    @property
    def _own_limit(self) -> int:
        return MAX_SAM3_TOKENS

    def _embed(self, phrase: str) -> tuple[Tensor, Tensor]:
        """Return features [1 l d] and mask [1 l] of a phrase: alone, so that they do not depend on other phrases."""
        padded: dict[str, Any] = {"padding": "max_length", "max_length": self.max_tokens}
        text = self.processor.tokenizer([phrase], return_tensors="pt", **padded).to(self.model.device)
        found = self.model.get_text_features(input_ids=text.input_ids, attention_mask=text.attention_mask)
        return found.pooler_output, text.attention_mask

    @torch.inference_mode()
    def forward(self, prepared: Prepared) -> tuple[Prepared, list[OnCpu]]:
        """Return the input, and boxes, logits and logits of the presence for each pass."""
        outputs = []
        with autocast(self.model.device, self.dtype):
            pixels = prepared.pixels["pixel_values"].to(self.model.device, non_blocking=True)
            image: Any = self.model.get_vision_features(pixel_values=pixels) if prepared.passes else {}
            for item in prepared.passes:
                levels = {
                    name: tuple(take(image[name], item.rows)) for name in ("fpn_hidden_states", "fpn_position_encoding")
                }
                features, masks = zip(*map(self._phrase_features, item.text), strict=True)
                output = self.model(
                    vision_embeds=type(image)(**levels),
                    text_embeds=BaseModelOutputWithPooling(pooler_output=torch.cat(features)),
                    attention_mask=torch.cat(masks),
                )
                outputs.append(OnCpu([output.pred_boxes, output.pred_logits, output.presence_logits]))
        return prepared, outputs

    @torch.inference_mode()
    def collect(self, output: tuple[Prepared, list[OnCpu]]) -> list[Grounded]:
        """Return the result of each image."""
        prepared, outputs = output
        found: list[list[Detection]] = [[] for _ in prepared.sizes]
        presence: list[dict[int, float]] = [{} for _ in prepared.sizes]
        for item, tensors in zip(prepared.passes, outputs, strict=True):
            boxes, logits, present = (tensor.float() for tensor in tensors.wait())
            scores = logits.sigmoid() * present.sigmoid()  # [b queries] * [b 1]
            for k, (row, phrases) in enumerate(zip(item.rows, item.columns, strict=True)):
                (phrase,) = phrases
                found[row] += _detections(phrase, boxes[k], scores[k], self.floor)
                presence[row][phrase] = float(present[k].sigmoid())
        results = zip(found, prepared.dropped, presence, strict=True)
        return [Grounded(boxes=boxes, dropped=lost, presence=present) for boxes, lost, present in results]


def _detections(phrase: int, boxes: Tensor, scores: Tensor, floor: float) -> list[Detection]:
    """Return the boxes [n, 4] of a phrase whose scores [n] are at least `floor`, clipped to the image."""
    keep = scores >= floor
    corners, kept = boxes[keep].clamp(0, 1).tolist(), scores[keep].tolist()
    return [Detection(phrase, tuple(box), score) for box, score in zip(corners, kept, strict=True)]


# Load these models of the transformers library as grounders.

HUB_FILES = ["*.json", "*.txt", "*.safetensors", "*.model"]
"""Patterns of the files to download from a hub repository. Pickle files are excluded: they could execute code."""
KINDS: Final[dict[str, tuple[type[GroundingDino | Owlv2 | Sam3], str, str]]] = {
    "grounding-dino": (GroundingDino, "GroundingDinoForObjectDetection", "AutoProcessor"),
    "mm-grounding-dino": (GroundingDino, "MMGroundingDinoForObjectDetection", "AutoProcessor"),
    "owlv2": (Owlv2, "Owlv2ForObjectDetection", "AutoProcessor"),
    "sam3": (Sam3, "Sam3Model", "Sam3Processor"),
    "sam3_video": (Sam3, "Sam3Model", "Sam3Processor"),  # the released files: detector and tracker
    "sam3_lite_text": (Sam3, "Sam3LiteTextModel", "Sam3Processor"),
}
"""Model type -> the grounder, and the names of transformers' model and processor."""


def load_hf_grounder(
    name: str, device: torch.device, floor: float, *, precision: Precision = "auto"
) -> GroundingDino | Owlv2 | Sam3:
    """Load a grounder of transformers, from safetensors files alone.

    Args:
        name: folder, or hub name `owner/name` or `owner/name@commit`.
        device: device of the network.
        floor: smallest score of a box, in [0, 1].
        precision: number format; "auto" is fp32 for Grounding DINO and its relatives.

    Returns:
        The grounder, in evaluation mode.

    Raises:
        UserError: the model is not found, is damaged or incomplete, or has an unsupported architecture.
    """
    hub = parse_hub_name(name) if "@" in name else None
    kind, model, processor = _load(name, str(fetch(hub, HUB_FILES)) if hub else name)
    model = model.to(device).eval()
    grounder = KINDS[kind][0]
    if precision == "auto" and grounder is GroundingDino:
        precision = "fp32"  # half precision changes the ranking of its queries and the refinement of its boxes
    return grounder(model, processor, floor, torch_dtype(resolve_precision(precision, device)))


def _load(name: str, path: str) -> tuple[str, Any, Any]:
    """Return the model type, the model and the processor in the folder `path`; error messages contain `name`."""
    import transformers

    try:
        check_model(path)
        options = loading(path)
        kind = transformers.AutoConfig.from_pretrained(path, **options).model_type
        if kind not in KINDS:
            raise UserError(
                f"ground.grounder={name!r} is a {kind!r} model; supported are {', '.join(KINDS)} and GLIP folders"
            )
        _, model_class, processor_class = KINDS[kind]
        # safetensors only: a pickle could execute code. float32: weights may be stored in half precision.
        with bounded_by_folder(path):
            model, report = getattr(transformers, model_class).from_pretrained(
                path, use_safetensors=True, dtype=torch.float32, output_loading_info=True, **options
            )
        with panics_as_errors():
            processor = getattr(transformers, processor_class).from_pretrained(path, **options)
            KINDS[kind][0](model, processor, 0.0).prepare([TRIAL], ["a dog"], [[(0, 5)]])
    except UserError:
        raise
    except Exception as error:  # its type depends on the file that is damaged
        reason = f"{type(error).__name__}: {first_line(error)}"
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
