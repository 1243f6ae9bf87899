"""Compare the statistics of two finished outputs: rows, drops by stage and reason, phrases, boxes, distributions,
the phrases and hosts that differ most, and the settings and versions that differ.

The figures are counted from the shards, so that an output without a report, or with an old one, is compared as it is.
Neither output is changed.
"""

import sys
from pathlib import Path

from common.cli import argument_parser, command, set_up_logging
from common.config_help import print_text
from common.disk import write_text
from common.errors import UserError
from common.paths import absolute
from common.urls import check_no_user
from pipeline.compare.contents import read_contents
from pipeline.compare.figures import differences, sections
from pipeline.compare.page import render
from pipeline.compare.text import comparison_lines


@command()
def main() -> int:
    """Run the command and return its exit code."""
    parser = argument_parser("python -m pipeline.compare", __doc__)
    parser.add_argument("a", metavar="A", help="output folder or URL of a job")
    parser.add_argument("b", metavar="B", help="another one")
    parser.add_argument(
        "--page", type=Path, default=Path("compare.html"), help="web page to write (default: %(default)s)"
    )
    options = parser.parse_args()
    for name in (options.a, options.b):
        check_no_user("output", name)
    if options.page.is_dir() or not options.page.absolute().parent.is_dir():
        raise UserError(f"--page is {options.page}; give a file in a folder that exists")
    set_up_logging()
    a, b = read_contents(absolute(options.a)), read_contents(absolute(options.b))
    tables, (settings, versions) = sections(a, b), differences((a.stats, b.stats))
    print_text("\n".join(comparison_lines((a.output, b.output), tables, settings, versions)))
    write_text(options.page, render(a, b, tables, settings, versions))
    print_text(f"page: {options.page}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
