"""The outputs of the checks: each is made once, by one command, when it is first asked for."""

import io
import json
import shutil
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import pyarrow as pa

from tests.e2e.commands import ROOT, Done, succeed
from tests.e2e.world import HOST, Web
from tests.patience import PATIENCE_S

LOCAL: Final = ("ray.runner=local", "ray.cpu_workers=1", "quiet=true")
"""Settings of all commands that compute shards."""
HIGHER_SCORE: Final = 0.72
"""Threshold of refilter, which about half of the kept rows reach."""
Row = dict[str, Any]


@dataclass
class Outputs:
    """The outputs below a folder, of a job whose images `web` serves."""

    folder: Path
    web: Web
    input: Path
    done: dict[str, Done] = field(default_factory=dict)

    def make(self, name: str) -> Path:
        """Return the folder of an output, which its recipe makes at the first call; copy it to change it."""
        output = self.folder / name
        if name not in self.done:
            self.done[name] = RECIPES[name](self, output)
        return output

    def copy(self, name: str, folder: Path) -> Path:
        """Return a copy of an output."""
        return Path(shutil.copytree(self.make(name), folder))

    def job(self, output: Path, *settings: str) -> list[str]:
        """Return the arguments of the job."""
        paths = (f"input={self.input}", f"output={output}", "rows_per_shard=16")
        hosts = f"download.allowed_private_hosts=[{HOST.removeprefix('http://')}]"
        limits = (f"download.timeout_s={PATIENCE_S}", f"download.deadline_s={PATIENCE_S}")
        return [str(ROOT / "jobs/demo.yaml"), *paths, hosts, *limits, *LOCAL, self.proxy, *settings]

    @property
    def proxy(self) -> str:
        """The setting that leads all requests to `web`."""
        return f"download.proxy={self.web.proxy}"


def make_job(outputs: Outputs, output: Path) -> Done:
    return succeed("job", *outputs.job(output))


def make_refilter(outputs: Outputs, output: Path) -> Done:
    return succeed(
        "rewrite", f"source={outputs.make('job')}", f"output={output}", f"score.min_score={HIGHER_SCORE}", *LOCAL
    )


def make_train_alone(outputs: Outputs, output: Path) -> Done:
    return succeed("rewrite", f"source={outputs.make('job')}", f"output={output}", "formats=[train]", *LOCAL)


def make_merge(outputs: Outputs, output: Path) -> Done:
    again = outputs.copy("job", outputs.folder / "job_again")
    return succeed("rewrite", f"source={outputs.make('job')}", f"source={again}", f"output={output}", *LOCAL)


def make_dedupe(outputs: Outputs, output: Path) -> Done:
    by = ("dedupe=[url,bytes,picture]", "dedupe_radius=2")
    return succeed("rewrite", f"source={outputs.make('merge')}", f"output={output}", *by, *LOCAL)


def make_reshard(outputs: Outputs, output: Path) -> Done:
    size = ("samples_per_shard=10", "seed=1")
    return succeed("rewrite", f"source={outputs.make('job')}", f"output={output}", *size, *LOCAL)


def make_reshard_in_order(outputs: Outputs, output: Path) -> Done:
    size = ("samples_per_shard=10", "shuffle=false")
    return succeed("rewrite", f"source={outputs.make('job')}", f"output={output}", *size, *LOCAL)


def make_decontaminate(outputs: Outputs, output: Path) -> Done:
    """Drop two rows: one by the URL, one by a picture."""
    by_url, by_picture = evaluation_rows(outputs)
    pictures = outputs.folder / "pictures"
    pictures.mkdir()
    (pictures / "a.jpg").write_bytes(stored_images(outputs.make("job"))[by_picture["key"]])
    urls = outputs.folder / "evaluation.txt"
    urls.write_text(f"{by_url['url']}\n")
    against = (f"against={urls}", f"against={pictures}", "against_radius=0")
    return succeed("rewrite", f"source={outputs.make('job')}", f"output={output}", *against, *LOCAL)


def make_takedown(outputs: Outputs, output: Path) -> Done:
    outputs.copy("job", output)
    return succeed("takedown", output, f"list={takedown_list(outputs)}", *LOCAL[:2])


def make_takedown_of_train_alone(outputs: Outputs, output: Path) -> Done:
    outputs.copy("train_alone", output)
    return succeed("takedown", output, f"list={takedown_list(outputs)}", *LOCAL[:2])


def make_retry(outputs: Outputs, output: Path) -> Done:
    """Try the rows again while the server has recovered."""
    outputs.copy("job", output)
    outputs.web.is_down = False
    try:
        return succeed("retry", *outputs.job(output))
    finally:
        outputs.web.is_down = True


RECIPES: Final = MappingProxyType[str, Callable[[Outputs, Path], Done]](
    {
        "job": make_job,
        "refilter": make_refilter,
        "train_alone": make_train_alone,
        "merge": make_merge,
        "dedupe": make_dedupe,
        "reshard": make_reshard,
        "reshard_in_order": make_reshard_in_order,
        "decontaminate": make_decontaminate,
        "takedown": make_takedown,
        "takedown_of_train_alone": make_takedown_of_train_alone,
        "retry": make_retry,
    }
)


def evaluation_rows(outputs: Outputs) -> tuple[Row, Row]:
    """Return the kept rows that an evaluation set names by URL, and by picture."""
    kept = kept_rows(outputs.make("job"))
    return kept[3], kept[-3]


def taken_down_rows(outputs: Outputs) -> tuple[Row, Row]:
    """Return the kept rows that a take-down names by URL, and by the hash of the image."""
    kept = kept_rows(outputs.make("job"))
    return kept[4], kept[-1]


def takedown_list(outputs: Outputs) -> Path:
    """Write the list of a take-down."""
    by_url, by_hash = taken_down_rows(outputs)
    path = outputs.folder / "takedown.txt"
    path.write_text(f"# rows to remove\n{by_url['url']}\n{by_hash['sha256']}\n")
    return path


def arrow_rows(output: Path) -> list[Row]:
    """Return the rows of arrow/, in the order of the shards."""
    return [row for path in sorted((output / "arrow").glob("*.arrow")) for row in read_arrow(path).to_pylist()]


def kept_rows(output: Path) -> list[Row]:
    """Return the kept rows of arrow/."""
    return [row for row in arrow_rows(output) if row["status"] == "kept"]


def read_arrow(path: Path) -> pa.Table:
    """Read a file in Arrow's IPC format."""
    with pa.ipc.open_file(io.BytesIO(path.read_bytes())) as file:
        return file.read_all()


def members(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the members of a tar."""
    with tarfile.open(path) as tar:
        for member in tar:
            file = tar.extractfile(member)
            assert file is not None
            yield member.name, file.read()


def stored_images(output: Path) -> dict[str, bytes]:
    """Return the stored images by key."""
    found = (member for path in sorted((output / "grit").glob("*.tar")) for member in members(path))
    return {name.removesuffix(".jpg"): data for name, data in found if name.endswith(".jpg")}


def train_keys(output: Path) -> list[str]:
    """Return the keys of the training samples, in their order."""
    names = [name for path in sorted((output / "train").glob("*.tar")) for name, _ in members(path)]
    return [name.partition(".")[0] for name in names if name.endswith(".child.jpg")]


def counts(output: Path) -> dict[str, Any]:
    """Return the numbers of rows in stats.json."""
    rows: dict[str, Any] = json.loads((output / "stats.json").read_text("utf-8"))["rows"]
    return rows


def drops(output: Path) -> dict[str, int]:
    """Return the number of dropped rows by `stage:reason` in stats.json."""
    return {f"{stage}:{name}": n for stage, names in counts(output)["dropped"].items() for name, n in names.items()}
