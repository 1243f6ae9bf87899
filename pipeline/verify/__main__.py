"""Check the shards of a finished output, and name those that are broken, each with its defects.

Of each shard: the manifest and its sums; sizes and SHA-256 of all files; schemas; the members of the tars against
_index/; each stored image and box crop, which is decoded; the rows of arrow/, grit/ and train/ against each other and
against the counts of the manifest; its summary, which the report adds up, against its rows. Of the output: keys in
several shards, missing shards of a command, and stats.json.
Nothing is written, unless --requeue is given.
"""

import os
import sys
import tempfile
from contextlib import nullcontext

from tqdm import tqdm

from common.cli import EXIT_CODES, argument_parser, command, set_up_logging
from common.config_help import print_text
from common.errors import UserError
from common.paths import absolute
from common.progress import tracked
from common.text import message
from common.urls import check_no_user
from pipeline.lease import hold_lease
from pipeline.resume.command import again, describe_left_out
from pipeline.verify.finding import Finding
from pipeline.verify.output import Repeats, Sums, list_contents, requeue
from pipeline.verify.pool import check_shards
from pipeline.write.store import Store
from pipeline.write.temporary import remove_abandoned_folders
from schemas.attempts import attempt_of

BROKEN = 1
SHOWN = 5
EXAMPLES = """\
examples:
  python -m pipeline.verify out/mine
  python -m pipeline.verify s3://bucket/shards --processes 16
  python -m pipeline.verify out/mine --requeue; python pipeline/grit.py jobs/mine.yaml output=out/mine

"""
CODES = EXIT_CODES.replace("1 a bug", "1 something is broken, or a bug")


@command("nothing has been changed")
def main() -> int:
    """Run the command and return its exit code."""
    parser = argument_parser("python -m pipeline.verify", __doc__, EXAMPLES + CODES)
    parser.add_argument("output", help="output folder or URL of the job")
    parser.add_argument(
        "--processes", type=int, default=len(os.sched_getaffinity(0)), help="child processes (default: one per core)"
    )
    parser.add_argument(
        "--requeue",
        action="store_true",
        help="remove the manifests of broken shards, so that the next run of the job computes these shards again; a "
        "broken index or summary alone is removed instead, and restored by that run",
    )
    options = parser.parse_args()
    if options.processes < 1:
        raise UserError(f"--processes is {options.processes}; give 1 or more")
    check_no_user("output", options.output)
    set_up_logging()
    return verify(absolute(options.output), options.processes, options.requeue)


def verify(output: str, n_processes: int, is_requeued: bool) -> int:
    """Check an output, print what is broken, and requeue it if `is_requeued`; return the exit code.

    Raises UserError if there is no finished shard, the store does not answer, or a job that runs holds the output.
    """
    store, broken, sums, n_bytes, n_images = Store(output), list[Finding](), Sums(), 0, 0
    repeats = Repeats()
    list_contents(store)  # raises before the lease creates the folder of a mistyped path
    with hold_lease(store) if is_requeued else nullcontext() as lease:
        contents = list_contents(store)
        for finding in tracked(check_shards(output, contents.plans, n_processes), len(contents.plans), "checked"):
            sums.add(finding)
            repeats.add(finding)
            n_bytes, n_images = n_bytes + finding.n_bytes, n_images + finding.n_images
            if finding.problems:
                broken.append(finding)
                tqdm.write(describe(finding), file=sys.stdout)
        remove_abandoned_folders(tempfile.gettempdir())
        others = [*contents.problems, *filter(None, [repeats.problem(store), None if broken else sums.problem(store)])]
        for problem in others:
            print_text(message(str(problem)))
        if lease is not None and broken:
            requeue(store, broken, lease)
    unfinished = f", {contents.n_unfinished} more are not finished" if contents.n_unfinished else ""
    print_text(
        f"{len(contents.plans)} finished shards{unfinished}: {sums.rows['read']:,} rows read, {sums.rows['kept']:,} kept, "
        f"{n_bytes / 1e9:,.3f} GB with the right hashes, {n_images:,} images decoded"
    )
    for left in contents.left_out:
        print_text(message(f"{describe_left_out(left)} are left out, since they were not finished (incomplete=true)"))
    print_text(message(verdict(broken, len(others), is_requeued, contents.command)))
    return BROKEN if broken or others else 0


def describe(finding: Finding) -> str:
    """Return one line for each of the first problems of a shard, safe for a terminal."""
    lines = [message(f"shard {finding.shard}: {problem}") for problem in finding.problems[:SHOWN]]
    if len(finding.problems) > SHOWN:
        lines.append(f"shard {finding.shard}: {len(finding.problems) - SHOWN} more problems")
    return "\n".join(lines)


def verdict(broken: list[Finding], n_others: int, is_requeued: bool, command: str) -> str:
    """Return the last line; `command` made the output, "" for one of the job."""
    if not broken:
        return "the shards are intact" if n_others else "everything is intact"
    names = ", ".join(str(finding.shard) for finding in sorted(broken, key=lambda finding: finding.shard)[:20])
    text = f"{len(broken)} shards are broken: {names}{', ...' if len(broken) > 20 else ''}"
    commands = sorted({command if finding.command is None else finding.command for finding in broken})
    if commands != [""]:
        advice = "run " + " and ".join(map(again, commands))
        return f"{text}; {'they are in the queue' if is_requeued else '--requeue puts them into the queue'}: {advice}"
    if not is_requeued:
        return f"{text}; --requeue lets the next run of the job compute them again"
    formats = {",".join(finding.formats) for finding in broken if finding.formats}
    hint = f" (formats=[{formats.pop()}])" if len(formats) == 1 else ""
    if all(attempt_of(finding.shard) for finding in broken):
        return f"{text}; they are in the queue: python -m pipeline.retry tries their rows again"
    return f"{text}; they are in the queue: run {again('')}{hint}"


if __name__ == "__main__":
    sys.exit(main())
