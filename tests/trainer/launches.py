"""Count what a device would have to launch: operations outside compiled graphs, and kernels that Inductor schedules."""

from collections.abc import Callable
from typing import Any

import torch
from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
from torch._dynamo.backends.common import aot_autograd
from torch._inductor.compile_fx import compile_fx_inner
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.scheduler import NopKernelSchedulerNode, Scheduler
from torch.utils._python_dispatch import TorchDispatchMode

NO_LAUNCH = (
    "_reshape_alias _unsafe_view alias as_strided chunk detach empty empty_like empty_strided expand lift_fresh movedim "
    "narrow new_empty new_empty_strided permute select slice split split_with_sizes squeeze t transpose unbind unflatten "
    "unsqueeze view"
)
"""Operations that launch nothing."""


class Launches(TorchDispatchMode):
    """Counts the operations inside that are no views: in eager code, each is a kernel or more."""

    count = 0

    @classmethod
    def is_infra_mode(cls) -> bool:
        """True: compiled code runs compiled inside."""
        return True

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += function.overloadpacket.__name__ not in NO_LAUNCH.split()
        return function(*args, **(kwargs or {}))


class ScheduledError(Exception):
    """Ends a compilation once its kernels are known."""


class KernelCounter:
    """A backend of torch.compile that counts the kernels of each graph, and then runs the graph without compiling it."""

    def __init__(self) -> None:
        self.kernels: list[int] = []  # of each graph: forward and backward graphs
        self.backend = aot_autograd(
            fw_compiler=self.count,
            bw_compiler=self.count,
            decompositions=select_decomp_table(),
            partition_fn=min_cut_rematerialization_partition,
        )

    def count(self, graph: torch.fx.GraphModule, inputs: Any) -> Any:
        """Schedule the kernels of a graph, as Inductor does, and count them."""

        def codegen(scheduler: Scheduler) -> None:
            self.kernels.append(sum(not isinstance(node, NopKernelSchedulerNode) for node in scheduler.nodes))
            raise ScheduledError

        real, Scheduler.codegen = Scheduler.codegen, codegen  # type: ignore[method-assign]
        n = len(self.kernels)
        try:
            compile_fx_inner(graph, inputs)
        except Exception:
            if len(self.kernels) == n:  # Inductor wraps all errors, that which ends the count among them
                raise
        finally:
            Scheduler.codegen = real  # type: ignore[method-assign]
        return make_boxed_func(graph.forward)


def graph_counter(graphs: list[int]) -> Callable[..., Any]:
    """A backend of torch.compile that runs graphs as they are, and appends the number of operations of each to a list."""

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        if operations := sum(node.op == "call_function" for node in graph.graph.nodes):
            graphs.append(operations)
        return graph.forward

    return backend
