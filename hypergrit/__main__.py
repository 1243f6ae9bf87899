"""The command `hypergrit VERB key=value ...`, also `python -m hypergrit VERB ...`. `hypergrit --help` lists the verbs."""

import difflib
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Final, NamedTuple

from hypergrit_common.cli import EXIT_CODES, command, leave
from hypergrit_common.config_help import print_text
from hypergrit_common.errors import UserError


class Verb(NamedTuple):
    """A verb: the module whose `main(arguments)` runs it and returns the exit code, and what it does."""

    module: str
    line: str


VERBS: Final = {
    "run": Verb(
        "pipeline.grit", "image-text pairs to grounded shards; dry_run=true predicts, retry=true tries rows again"
    ),
    "rewrite": Verb(
        "pipeline.commands.rewrite",
        "finished shards to new ones: thresholds, merge, dedupe, decontaminate, reshard, shuffle",
    ),
    "takedown": Verb("pipeline.commands.takedown", "remove what a list names from a finished output, in place"),
    "verify": Verb("pipeline.commands.verify", "check every file, row and image of an output"),
    "explore": Verb("pipeline.commands.explore", "look at an output: page, report, the life of a row"),
    "quality": Verb("pipeline.commands.quality", "measure the boxes with known ones or by people; choose thresholds"),
    "models": Verb("pipeline.commands.models", "fetch the models of a job, or convert a GLIP checkpoint"),
    "features": Verb("trainer.features.command", "write the outputs of frozen towers, for heads that train in seconds"),
    "train": Verb("trainer.train", "train a hyperbolic model on shards, or a head on features"),
    "evaluate": Verb("trainer.evaluate", "evaluate models on the papers' benchmarks or on held-out shards"),
    "export": Verb("hypergrit.export", "outputs to COCO, ODVG, Lance or the hub; models to open_clip, ONNX"),
}
USAGE: Final = f"""\
usage: hypergrit VERB [key=value ...]

{"".join(f"  {name:<9} {verb.line}{chr(10)}" for name, verb in VERBS.items())}
hypergrit VERB --help explains a verb and its keys. docs/quickstart.md leads from ten URLs to an evaluated model.

{EXIT_CODES}"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a verb and return its exit code; the script `hypergrit`, without `arguments`, ends its process with it."""
    return leave(run(sys.argv[1:])) if arguments is None else run(arguments)


@command()
def run(arguments: Sequence[str]) -> int:
    """Run a verb and return its exit code. Raises UserError for a name that is no verb."""
    name, *rest = [*arguments] or [""]
    if name in ("-h", "--help", "help") and rest:
        name, rest = rest[0], ["--help", *rest[1:]]
    if name in ("", "-h", "--help", "help"):
        print_text(USAGE)
        return 0 if name else 2
    if name not in VERBS:
        near = difflib.get_close_matches(name, VERBS, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise UserError(
            f"{name!r} is no verb; {hint}The verbs are {', '.join(VERBS)}; see hypergrit --help, or hypergrit VERB --help KEY"
        )
    return int(import_module(VERBS[name].module).main(rest))


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
