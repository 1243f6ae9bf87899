"""Command line of the explorer: look at the rows of one or two finished outputs in a browser."""

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import fields
from typing import Final

from common.cli import EXIT_CODES, command, set_up_logging
from common.config_help import describe, print_text
from common.errors import UserError
from common.urls import check_no_user
from pipeline.explore.config import ExploreOptions

USAGE: Final = f"""\
usage: python -m pipeline.explore OUT [OTHER] [key=value ...]

Serves a page with all rows of an output: pictures with boxes, dependency trees and scores; filters and search; a
preview of other thresholds with the command that applies them; marks of boxes for pipeline.audit. With two outputs, it
shows both pictures of each row. The outputs are not changed.

  python -m pipeline.explore out/demo
  python -m pipeline.explore out/demo out/strict
  python -m pipeline.explore s3://data/coyo static=page images=5000

  OUT, OTHER           output folders or URLs of jobs, with arrow/; for pictures also grit/ or write.image_bytes=true

{EXIT_CODES}
"""


@command()
def main(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    if "-h" in arguments or "--help" in arguments:
        print_text(describe(USAGE, ExploreOptions, {}))
        return 0
    set_up_logging()
    from pipeline.derive.settings import is_option, take_options
    from pipeline.explore.server import serve
    from pipeline.explore.site import read_outputs, write_static

    keys = {field.name for field in fields(ExploreOptions)}
    names = [item for item in arguments if not is_option(item, keys)]
    if len(names) not in (1, 2):
        raise UserError(f"{len(names)} outputs are given; give one or two: python -m pipeline.explore OUT [OTHER]")
    for name in names:
        check_no_user("OUT", name)
    options, others = take_options([item for item in arguments if is_option(item, keys)], ExploreOptions)
    if others:
        raise UserError(f"{others[0]!r} is not a key of this command; see --help for the keys")
    outputs = read_outputs(names, options.cache)
    if options.static:
        write_static(outputs, options)
        print_text(f"{options.static}/index.html: open it through a file server, such as "
                   f"python -m http.server --directory {options.static} --bind 127.0.0.1")  # fmt: skip
        return 0
    try:
        asyncio.run(serve(outputs, options))
    except KeyboardInterrupt:
        print_text("stopped")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
