"""Capture the intermediate tensors of a GLIP forward pass under the names of the parity files."""

from collections import Counter
from typing import Any, Self

from torch import Tensor, nn

from pipeline.stages.ground.glip.fuse import DyConv, Fuse, TextLayer, split_levels
from pipeline.stages.ground.glip.model import Glip
from pipeline.stages.ground.glip.swin import Swin


class Capture:
    """A context in which forward hooks store the model's tensors in `tensors`."""

    def __init__(self, model: Glip) -> None:
        self.model = model
        self.tensors: dict[str, Tensor] = {}
        self._calls: Counter[str] = Counter()
        self._handles: list[Any] = []

    def __enter__(self) -> Self:
        model = self.model
        swin = model.backbone.body
        assert isinstance(swin, Swin)
        self._store_output(swin.patch_embed, "swin.patch_embed")
        for s, stage in enumerate(swin.layers):
            for b, block in enumerate(stage.blocks):
                self._store_output(block, f"swin.block.{s}.{b}")
        self._add_hook(swin.layers[0], lambda out, inputs: self._store("swin.out.0", _to_map(out[0], inputs[1])))
        self._add_hook(swin, lambda out, _: [self._store(f"swin.out.{i}", x) for i, x in enumerate(out, start=1)])
        self._add_hook(model.backbone.fpn, lambda out, _: [self._store(f"fpn.{i}", x) for i, x in enumerate(out)])
        bert = model.language_backbone.body["model"]
        self._store_output(bert.embeddings, "bert.embeddings")
        for i, layer in enumerate(bert.encoder.layer):
            self._store_output(layer, f"bert.layer.{i}")
        self._add_hook(model.language_backbone, self._language)
        is_first = True
        for j, module in enumerate(model.rpn["head"].dyhead_tower):
            self._tower(j, module)
            if isinstance(module, DyConv) and is_first:
                is_first = False
                self._dyconv(f"tower.{j}.dyconv", module)
        self._head()
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    def _store(self, name: str, value: Tensor) -> None:
        self.tensors[name] = value

    def _add_hook(self, module: nn.Module, act: Any) -> None:
        """Call `act(output, inputs)` after each forward pass of a module."""

        def hook(
            _: nn.Module, inputs: Any, out: Any
        ) -> None:  # a hook that returned something would replace the output
            act(out, inputs)

        self._handles.append(module.register_forward_hook(hook))

    def _store_output(self, module: nn.Module, name: str) -> None:
        self._add_hook(module, lambda out, _: self._store(name, out[0] if isinstance(out, tuple) else out))

    def _store_calls(self, module: nn.Module, name: str) -> None:
        """Store the output of each call of a module that is called several times."""

        def act(out: Tensor, _: Any) -> None:
            self._store(f"{name}.call{self._calls[name]}", out)
            self._calls[name] += 1

        self._add_hook(module, act)

    def _language(self, out: Tensor, inputs: tuple[Tensor, Tensor]) -> None:
        self._store("lang.hidden", out)
        self._store("lang.embedded", out * inputs[1][..., None])

    def _tower(self, j: int, module: nn.Module) -> None:
        kind = {Fuse: "fuse", TextLayer: "text", DyConv: "dyconv"}[type(module)]

        def act(out: tuple[list[Tensor], Tensor], _: Any) -> None:
            if kind != "text":
                for level, x in enumerate(out[0]):
                    self._store(f"tower.{j}.{kind}.visual.{level}", x)
            if kind != "dyconv":
                self._store(f"tower.{j}.{kind}.lang", out[1])

        self._add_hook(module, act)
        if isinstance(module, Fuse) and j == 0:
            names = ("tower.0.fuse.delta_v", "tower.0.fuse.delta_l")
            attention = module.b_attn.attn
            self._add_hook(attention, lambda out, _: [self._store(n, x) for n, x in zip(names, out, strict=True)])

    def _dyconv(self, name: str, module: DyConv) -> None:
        assert module.offset is not None
        self._store_calls(module.offset, f"{name}.offset")
        self._store_calls(module.AttnConv, f"{name}.AttnConv")
        self._store_calls(module.relu.fc, f"{name}.dyrelu_coef")
        for i, conv in enumerate(module.DyConv):
            self._store_calls(conv, f"{name}.DyConv{i}")

    def _head(self) -> None:
        head = self.model.rpn["head"]
        visual: list[Tensor] = []
        for scale in head.scales:
            self._store_calls(scale, "head.bbox_reg")
        self._add_hook(head.dyhead_tower[-1], lambda out, _: visual.extend(out[0]))
        self._store_calls(head.centerness, "head.centerness")

        def finish(out: tuple[Tensor, Tensor, Tensor], _: Any) -> None:
            sizes = [(x.shape[2], x.shape[3]) for x in visual]
            for level, x in enumerate(visual):
                self._store(f"head.cls_logits.{level}", head.cls_logits(x))
                self._store(f"head.bbox_reg.{level}", self.tensors.pop(f"head.bbox_reg.call{level}"))
                self._store(f"head.centerness.{level}", self.tensors.pop(f"head.centerness.call{level}"))
            for level, dots in enumerate(out[0].split([h * w for h, w in sizes], dim=1)):
                self._store(f"head.dot.{level}", dots)

        self._add_hook(head, finish)


def _to_map(cells: Tensor, size: tuple[int, int]) -> Tensor:
    return split_levels(cells, [size])[0]
