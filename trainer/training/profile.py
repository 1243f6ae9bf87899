"""A profile of a run: `log.profile=STEPS` measures so many steps, traces as many more, and writes OUTPUT/profile/.

summary.json holds the speed, the share of the device's peak FLOP/s (MFU), the peak of the memory and the share of
padding among the tokens; trace.json.gz is for chrome://tracing, and memory.pickle (GPUs) for pytorch.org/memory_viz.
"""

import logging
import time
from functools import cache
from resource import RUSAGE_SELF, getrusage
from typing import Any, Final

import torch
from torch.utils.flop_counter import FlopCounterMode

from hypergrit_common.json_file import write_object
from trainer.batch import Batch
from trainer.models.dual_encoder import DualEncoder
from trainer.models.registry import build_model
from trainer.training.build import Training

logger = logging.getLogger(__name__)

SETTLED: Final = 3
"""Steps before the profile: in them blocks are compiled, and the allocator finds its sizes."""
DENSE_BF16: Final = {"H200": 989e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12, "A6000": 155e12}
"""FLOP/s by the data sheets."""


def peak_flop_s(device: torch.device) -> float | None:
    """Return the peak of a GPU in bf16 by its data sheet; None for a device that is not listed."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    return next((peak for key, peak in DENSE_BF16.items() if key in name), None)


class Profile:
    """Measures the steps of this process. Call `before` for each step, and `finish` after the last."""

    def __init__(self, run: Training, n_steps: int) -> None:
        self.run, self.n_steps, self.folder = run, n_steps, run.folder.path / "profile"
        self.first = run.step + SETTLED
        self.tokens = self.padding = self.flops = self.pairs = 0
        self.start_time = 0.0
        self.tracer: Any = None
        self.summary: dict[str, Any] = {}

    def before(self, batch: Batch) -> None:
        """Note the batch of the next step, if it is measured; begin or end what is due."""
        step = self.run.step - self.first
        if step == 0:
            self._synchronize()
            self.start_time = time.perf_counter()
        if 0 <= step < self.n_steps:
            self._count(batch)
        elif step == self.n_steps:
            self._measured()
            self._begin_trace()
        elif step == 2 * self.n_steps:
            self.finish()

    def finish(self) -> None:
        """End the profile and write what there is."""
        if self.start_time and not self.summary:
            self._measured()
        if self.tracer:
            self._synchronize()
            self.tracer.stop()
            trace, memory = self.folder / "trace.json.gz", self.folder / "memory.pickle"
            for path in (trace, memory):
                path.unlink(missing_ok=True)  # it may be a link, through which another file would change
            self.tracer.export_chrome_trace(str(trace))
            if self.run.process.device.type == "cuda":
                torch.cuda.memory._dump_snapshot(str(memory))
                torch.cuda.memory._record_memory_history(enabled=None)
            self.tracer = None

    def _count(self, batch: Batch) -> None:
        tower_flops = self._flops_of_row()
        self.pairs += len(batch["image"].rows)
        for rows, side, packed in ((stream.rows, stream.side, stream.packed) for stream in batch.streams.values()):
            places = 0 if side == "image" else rows.numel() if packed is None else len(packed)
            self.tokens += places
            self.padding += int((rows == self.run.tokenizer.pad_id).sum()) if places and packed is None else 0
            self.flops += len(rows) * tower_flops(round(places / max(len(rows), 1)))

    def _flops_of_row(self) -> Any:
        if not hasattr(self, "_flops"):
            with torch.device("meta"):  # neither memory nor other ranks
                model = build_model(self.run.config.model_name, self.run.config.model)
            trained = {name for name, parameter in self.run.model.named_parameters() if parameter.requires_grad}
            for name, parameter in model.named_parameters():
                parameter.requires_grad_(name in trained)
            self._flops = cache(lambda length: flops_of_row(model, length))
        return self._flops

    def _measured(self) -> None:
        self._synchronize()
        seconds = time.perf_counter() - self.start_time
        n, device = min(self.n_steps, self.run.step - self.first), self.run.process.device
        peak = peak_flop_s(device)
        memory = (
            torch.cuda.max_memory_allocated(device)
            if device.type == "cuda"
            else 1024 * getrusage(RUSAGE_SELF).ru_maxrss
        )
        self.summary = {
            "steps": n,
            "pairs_per_s_of_process": self.pairs / seconds,
            "step_ms": 1e3 * seconds / n,
            "tower_tflop_per_s": self.flops / seconds / 1e12,
            "mfu": None if peak is None else self.flops / seconds / peak,
            "peak_memory_gb": memory / 1e9,
            "padding_share": self.padding / self.tokens,
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        write_object(self.summary, self.folder / "summary.json")
        shown = ", ".join(f"{name} {value:.3g}" for name, value in self.summary.items() if value is not None)
        logger.info("profile of steps %d to %d: %s", self.first + 1, self.first + n, shown)

    def _begin_trace(self) -> None:
        kinds = [torch.profiler.ProfilerActivity.CPU]
        if self.run.process.device.type == "cuda":
            kinds.append(torch.profiler.ProfilerActivity.CUDA)
            torch.cuda.memory._record_memory_history()
        self.tracer = torch.profiler.profile(activities=kinds)
        self.tracer.start()

    def _synchronize(self) -> None:
        if self.run.process.device.type == "cuda":
            torch.cuda.synchronize(self.run.process.device)


def flops_of_row(model: DualEncoder, length: int) -> int:
    """Return the FLOPs of one image (length 0) or one text of `length` tokens: forward and backward pass of the tower."""
    size = model.config.image.size_px
    with FlopCounterMode(display=False) as counter:
        if length:
            features = model.text_features(torch.zeros(1, length, dtype=torch.int64, device="meta"))
        else:
            features = model.image_features(torch.zeros(1, 3, size, size, device="meta"))
        if features.requires_grad:
            features.sum().backward()
    return int(counter.get_total_flops())
