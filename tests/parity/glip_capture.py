"""Intermediate tensors of a GLIP forward pass, under the parity files' names, by forward hooks."""

from collections import Counter
from typing import Any, Self

from torch import Tensor, nn

from pipeline.ground.glip.dyconv import DyConv
from pipeline.ground.glip.fpn import split_levels
from pipeline.ground.glip.fuse import Fuse, TextLayer
from pipeline.ground.glip.model import Glip
from pipeline.ground.glip.swin import Swin


class Capture:
    """A context in which the model's calls leave their tensors in `tensors`."""

    def __init__(self, model: Glip) -> None:
        self.model = model
        self.tensors: dict[str, Tensor] = {}
        self._calls: Counter[str] = Counter()
        self._handles: list[Any] = []

    def __enter__(self) -> Self:
        model = self.model
        swin = model.backbone.body
        assert isinstance(swin, Swin)
        self._keep(swin.patch_embed, "swin.patch_embed")
        for s, stage in enumerate(swin.layers):
            for b, block in enumerate(stage.blocks):
                self._keep(block, f"swin.block.{s}.{b}")
        self._on(swin.layers[0], lambda out, inputs: self._put("swin.out.0", _to_map(out[0], inputs[1])))
        self._on(swin, lambda out, _: [self._put(f"swin.out.{i}", x) for i, x in enumerate(out, start=1)])
        self._on(model.backbone.fpn, lambda out, _: [self._put(f"fpn.{i}", x) for i, x in enumerate(out)])
        bert = model.language_backbone.body.model
        self._keep(bert.embeddings, "bert.embeddings")
        for i, layer in enumerate(bert.encoder.layer):
            self._keep(layer, f"bert.layer.{i}")
        self._on(model.language_backbone, self._language)
        is_first = True
        for j, module in enumerate(model.rpn.head.dyhead_tower):
            self._tower(j, module)
            if isinstance(module, DyConv) and is_first:
                is_first = False
                self._dyconv(f"tower.{j}.dyconv", module)
        self._head()
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    def _put(self, name: str, value: Tensor) -> None:
        self.tensors[name] = value

    def _on(self, module: nn.Module, act: Any) -> None:
        self._handles.append(module.register_forward_hook(lambda _, inputs, out: _none(act(out, inputs))))

    def _keep(self, module: nn.Module, name: str) -> None:
        self._on(module, lambda out, _: self._put(name, out[0] if isinstance(out, tuple) else out))

    def _count(self, module: nn.Module, name: str) -> None:
        def act(out: Tensor, _: Any) -> None:
            self._put(f"{name}.call{self._calls[name]}", out)
            self._calls[name] += 1

        self._on(module, act)

    def _language(self, out: Tensor, inputs: tuple[Tensor, Tensor]) -> None:
        self._put("lang.hidden", out)
        self._put("lang.embedded", out * inputs[1][..., None])

    def _tower(self, j: int, module: nn.Module) -> None:
        kind = {Fuse: "fuse", TextLayer: "text", DyConv: "dyconv"}[type(module)]

        def act(out: tuple[list[Tensor], Tensor], _: Any) -> None:
            if kind != "text":
                for level, x in enumerate(out[0]):
                    self._put(f"tower.{j}.{kind}.visual.{level}", x)
            if kind != "dyconv":
                self._put(f"tower.{j}.{kind}.lang", out[1])

        self._on(module, act)
        if isinstance(module, Fuse) and j == 0:
            names = ("tower.0.fuse.delta_v", "tower.0.fuse.delta_l")
            attention = module.b_attn.attn
            self._on(attention, lambda out, _: [self._put(n, x) for n, x in zip(names, out, strict=True)])

    def _dyconv(self, name: str, module: DyConv) -> None:
        assert module.offset is not None
        self._count(module.offset, f"{name}.offset")
        self._count(module.AttnConv, f"{name}.AttnConv")
        self._count(module.relu.fc, f"{name}.dyrelu_coef")
        for i, conv in enumerate(module.DyConv):
            self._count(conv, f"{name}.DyConv{i}")

    def _head(self) -> None:
        head = self.model.rpn.head
        visual: list[Tensor] = []
        for scale in head.scales:
            self._count(scale, "head.bbox_reg")
        self._on(head.dyhead_tower[-1], lambda out, _: visual.extend(out[0]))
        self._count(head.centerness, "head.centerness")

        def finish(out: tuple[Tensor, Tensor, Tensor], _: Any) -> None:
            sizes = [(x.shape[2], x.shape[3]) for x in visual]
            for level, x in enumerate(visual):
                self._put(f"head.cls_logits.{level}", head.cls_logits(x))
                self._put(f"head.bbox_reg.{level}", self.tensors.pop(f"head.bbox_reg.call{level}"))
                self._put(f"head.centerness.{level}", self.tensors.pop(f"head.centerness.call{level}"))
            for level, dots in enumerate(out[0].split([h * w for h, w in sizes], dim=1)):
                self._put(f"head.dot.{level}", dots)

        self._on(head, finish)


def _to_map(cells: Tensor, size: tuple[int, int]) -> Tensor:
    return split_levels(cells, [size])[0]


def _none(_: object) -> None:
    """Hooks that return something would replace the module's output."""
