"""Train a model: `hypergrit train jobs/train/hycoclip.yaml key=value`. `--help` explains every key."""

import logging
import os
import signal
import sys
from collections.abc import Sequence

from hypergrit_common.cli import EXIT_CODES, command, notify, set_up_logging
from hypergrit_common.config_help import help_topic, print_text
from hypergrit_common.processes import end_with_parent
from trainer.config import help_text, load_config
from trainer.distributed.config import ALLOCATOR, use_slurm

USAGE = f"""\
usage: hypergrit train [CONFIG.yaml ...] [key=value ...]

Train a model of images and texts on shards: those of this project's pipeline, those of HyCoCLIP, raw GRIT, or tars of
image-text pairs. Later files and arguments override earlier ones. Repeat the command to resume a run that was stopped:
it continues from its last checkpoint.

  hypergrit train data=synthetic steps=20 batch_size=8 optim.warmup_steps=1 output=out/try    does it run here? without data
  hypergrit train jobs/train/hycoclip.yaml shards=out/grit/train output=out/hycoclip
  python -m trainer.torchrun --nproc-per-node 8 -m trainer.train jobs/train/hycoclip.yaml shards=... output=...
  srun python -m trainer.train jobs/train/hycoclip.yaml shards=... output=...    (jobs/train/slurm.sh)
  ray job submit --working-dir . -- \\
      hypergrit train jobs/train/hycoclip.yaml ray.workers=8 shards=... output=/data/...

--help model_name=NAME lists the settings of that model, --help KEY a key or a group.

{EXIT_CODES}
138 preempted (SIGUSR1).
After the first step, SIGTERM, SIGUSR1 or Ctrl-C stops the run with a checkpoint. A second Ctrl-C ends it at once, and
so does another signal that comes more than ten seconds after the first.
"""


@command("checkpoints are kept; repeat the command to resume")
def main(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code, as documented in --help."""
    if help_topic(arguments) is not None:
        print_text(help_text(USAGE, arguments))
        return 0
    set_up_logging()
    return run(arguments)


def run(arguments: Sequence[str]) -> int:
    """Load the configuration and train, in this process or on Ray. Return the exit code.

    Raises UserError for errors that the user can fix. torch and Ray are imported only when they are needed.
    """
    config = load_config(arguments)
    if config.ray.workers:
        from trainer.training.on_ray import train_on_ray, with_absolute_output

        train_on_ray(with_absolute_output(config))
        return 0
    use_slurm(os.environ)
    for name, value in ALLOCATOR.items():
        os.environ.setdefault(name, value)
    if "TORCHELASTIC_RUN_ID" in os.environ:
        end_with_parent(os.getppid(), signal.SIGTERM)
    if int(os.environ.get("RANK", "0")):
        logging.getLogger().setLevel(logging.WARNING)  # only the main process logs progress
    logging.getLogger(__name__).info("loading PyTorch and the data to train %s in %s", config.model_name, config.output)
    from trainer.training.loop import train
    from trainer.training.results import StoppedError

    try:
        train(config)
    except StoppedError as stopped:
        notify(str(stopped))
        return 128 + stopped.signal_number
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
