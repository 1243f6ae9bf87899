"""Export models to open_clip's layout and back, or to ONNX: `hypergrit export MODEL OUT`. `--help` explains all."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hypergrit_common.cli import EXIT_CODES, command, set_up_logging
from hypergrit_common.config import Keys, Trusting, merge, read_layers
from hypergrit_common.config_help import describe_topic, help_topic, print_text
from hypergrit_common.errors import UserError
from hypergrit_common.text import printable

ONNX = "format=onnx"
USAGE = f"""\
usage: hypergrit export MODEL OUT [format=onnx] [trust=[CLASS]]

Write the towers of MODEL to the folder OUT in open_clip's layout:

  hypergrit export out/hycoclip out/open_clip                      the model of a finished run
  hypergrit export models/hycoclip out/open_clip                   a copy of its folder model/
  model = open_clip.create_model("local-dir:out/open_clip")        use it in Python
  hypergrit export out/open_clip out/again                         back, with the same weights
  hypergrit evaluate out/again shards=out/held_out/train           evaluate what came back

  MODEL  the folder of a finished run, its folder model/, or a folder written by this command or by open_clip
  OUT    a folder that does not exist, or is empty

encode_image and encode_text of that model return the features before the lift into the model's space; normalised, they
are CLIP's points. OUT also keeps what open_clip does not know, such as curvatures. If MODEL is already in open_clip's
layout, OUT becomes a folder for trainer.load_model, with the same weights, bit for bit.

The image tower must be vit_small, vit_base or vit_large, or a vision transformer or a network with a linear projection
of open_clip/NAME; the tokenizer must be OpenAI's.

format=onnx writes OUT/image.onnx and OUT/text.onnx instead, for any model: from images in [0, 1] and from token ids to
points [batch width], with the lift into the space inside; OUT/model.json has sizes, padding and curvatures. It needs the
extra onnx. trust=[module:Class] loads a model of a class of your own (docs/extending.md), whose code runs.

{EXIT_CODES}
"""


@command()
def main(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code, as documented in --help."""
    if (topic := help_topic(arguments)) is not None:
        print_text(describe_topic(topic, [], USAGE) if topic else USAGE)
        return 0
    settings = [item for item in arguments if item.startswith("trust=")]
    folders = [item for item in arguments if item not in (ONNX, *settings)]
    if len(folders) != 2 or folders[1].startswith("output="):
        raise UserError(
            f"the arguments are {' '.join(arguments)!r}; give two, the folder of a model and the new folder, and perhaps "
            f"{ONNX} and trust=[CLASS]"
        )
    set_up_logging()
    trust = merge(Trusting, read_layers(settings, Keys())).trust
    convert(Path(folders[0]), Path(folders[1]), ONNX in arguments, trust)
    print_text(f"{printable(folders[1])} is written")
    return 0


def convert(source: Path, out: Path, is_onnx: bool = False, trust: Sequence[str] = ()) -> None:
    """Export the model in `source`, to ONNX if `is_onnx`, or convert an exported one back.

    Raises UserError for a model that cannot be read or exported, and if `out` holds files or cannot be written.
    """
    from trainer.checkpoints.model import load_model, save_model
    from trainer.checkpoints.onnx_file import write_onnx
    from trainer.checkpoints.open_clip_layout import CONFIG_FILE, export_model
    from trainer.inference.hub import write_card  # torch is not needed for --help

    try:
        if out.exists() and any(out.iterdir()):
            raise UserError(f"{out} is not empty; give a new folder")
        found = load_model(source, trust=trust)
        parts: dict[str, Any] = {"tokenizer": found.tokenizer, "preprocess": found.preprocess}
        parts["record"] = found.config.get("record") or {}
        if is_onnx:
            write_onnx(found, out)
        elif (source / CONFIG_FILE).is_file():
            save_model(out, found.model, **parts)
            write_card(out)
        else:
            export_model(out, found.model, **parts)
    except (OSError, ValueError) as error:
        raise UserError(str(error)) from error


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
