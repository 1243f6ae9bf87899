"""Parts of a model that are trained only from a step on, or never."""

import math

from torch import nn

from common.errors import UserError
from trainer.models.dual_encoder import DualEncoder
from trainer.names import check_matched, longest_match
from trainer.optim.config import OptimConfig
from trainer.optim.lora import is_update


def first_steps(model: nn.Module, config: OptimConfig) -> dict[str, float]:
    """The step before which parameters keep their values, by name: those that a pattern of `frozen_until` matches.

    It is infinite for those that are never trained. Updates of LoRA are trained all the same.
    """
    found = {}
    for name, _ in model.named_parameters():
        pattern = None if is_update(name) else longest_match(config.frozen_until, name)
        if pattern is not None:
            step = config.frozen_until[pattern]
            found[name] = math.inf if step is None else float(step)
    return found


def check_patterns(model: DualEncoder, config: OptimConfig) -> None:
    """Raise UserError for a pattern that matches no parameter, or if the first step would train nothing."""
    names = [name for name, _ in model.named_parameters()]
    for key in ("lr_ratios", "frozen_until"):
        try:
            check_matched(getattr(config, key), names)
        except ValueError as error:
            raise UserError(f"optim.{key}: {error}") from None
    steps = first_steps(model, config)
    if all(steps.get(name, 0) > 0 for name, parameter in model.named_parameters() if parameter.requires_grad):
        raise UserError("optim.frozen_until freezes all parameters in the first step; leave one of them out")


def freeze_for_good(model: DualEncoder, config: OptimConfig) -> None:
    """Exclude the parameters from training that `frozen_until` never trains. Before the optimizer is built."""
    for name, step in first_steps(model, config).items():
        if step == math.inf:
            model.get_parameter(name).requires_grad_(False)


class Freezing:
    """The parameters of `model` that are trained from a step on.

    Their gradients are computed and exchanged from the beginning, since DDP and FSDP are told once which parameters
    have one, and discarded before that step. Without a gradient, AdamW neither moves nor decays a weight. Modules whose
    parameters are all frozen are in evaluation mode: no dropout, no updates of batch norms.
    """

    def __init__(self, model: DualEncoder, config: OptimConfig) -> None:
        steps = first_steps(model, config)
        self.model = model
        self.parameters = [(model.get_parameter(name), step) for name, step in steps.items()]
        self.modules = [
            (module, max(steps[name] for name in names))
            for prefix, module in model.named_modules()
            if (names := [f"{prefix}.{name}".lstrip(".") for name, _ in module.named_parameters()])
            and all(name in steps for name in names)
        ]

    def set_modes(self, step: int) -> None:
        """Set the training mode of all modules for step number `step`, from 0."""
        if self.modules:
            self.model.train()
        for module, first in self.modules:
            if step < first:
                module.eval()

    def drop_gradients(self, step: int) -> None:
        """Remove the gradients of the parameters that step number `step`, from 0, does not train."""
        for parameter, first in self.parameters:
            if step < first:
                parameter.grad = None
