"""Run docs/hierarchy.ipynb in a fresh kernel, and save it with its outputs."""

import os
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import nbformat
from nbclient import NotebookClient
from traitlets.config import Config

from docs.figures.paths import DOCS
from hypergrit_common.config_help import print_text

NOTEBOOK: Final = DOCS / "hierarchy.ipynb"
SECONDS: Final = 300


def executed(path: Path) -> Any:
    """Run a notebook in its folder and return it with the outputs of this run. Raises CellExecutionError if a cell fails.

    Nothing in the metadata depends on the machine or the time.
    """
    notebook = nbformat.read(path, as_version=4)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # inherited by the kernel; more threads change the last digits
    with tempfile.TemporaryDirectory() as folder:
        # Sockets in a folder of this user: others of the machine can connect to the ports that are used by default.
        sockets = Config(KernelManager={"transport": "ipc", "ip": f"{folder}/kernel"})
        where = {"metadata": {"path": str(path.parent)}}
        client = NotebookClient(notebook, config=sockets, kernel_name="python3", timeout=SECONDS, resources=where)
        client.execute()
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    notebook.metadata = nbformat.from_dict({"kernelspec": kernel, "language_info": {"name": "python"}})
    for cell in notebook.cells:
        cell.metadata = nbformat.from_dict({})
    return notebook


def main() -> int:
    """Run the notebook and replace its file."""
    notebook = executed(NOTEBOOK)
    nbformat.validate(notebook)
    nbformat.write(notebook, NOTEBOOK)
    print_text(str(NOTEBOOK))
    return 0


if __name__ == "__main__":
    sys.exit(main())
