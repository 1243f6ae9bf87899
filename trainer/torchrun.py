"""torchrun that ends with the exit code of the trainer: `python -m trainer.torchrun --nproc-per-node 8 -m trainer.train ...`.

torchrun itself ends with a traceback and exit code 1 after Ctrl-C, SIGTERM and errors of its processes, and they go on
if it is killed.
"""

import os
import sys
from collections.abc import Sequence

from hypergrit_common.cli import command
from hypergrit_common.processes import end_children_with_this_process


@command()
def main(arguments: Sequence[str]) -> int:
    """Run torchrun with these arguments. Return 128 + the number of a signal, else the code of the first failed process."""
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import parse_args, run

    end_children_with_this_process()
    # A process that has received a signal needs time to save its checkpoint.
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "300")
    try:
        run(parse_args([*arguments]))
    except SignalException as error:
        return 128 + int(error.sigval)
    except ChildFailedError as error:
        code = error.get_first_failure()[1].exitcode
        return code if code >= 0 else 128 - code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
