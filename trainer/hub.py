"""Models on the Hugging Face hub: folders of `trainer.checkpoints.model` as repositories."""

import re
from pathlib import Path
from typing import Final

from common.errors import UserError
from trainer.card import CARD

FILES: Final = ("config.json", "model.safetensors", "merges.txt", "tokenizer.json", CARD)
"""All files of a model. No others are downloaded or uploaded."""
REPOSITORY: Final = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


def fetch_model(name: str, revision: str | None = None, token: str | None = None) -> Path:
    """Return a folder or file on this machine, or download a repository OWNER/NAME of the hub and return its folder.

    `revision` is a branch, tag or commit. With HF_HUB_OFFLINE=1, only the cache is used. Raises UserError if the name is
    neither, or if the repository cannot be fetched.
    """
    if Path(name).exists():
        return Path(name)
    if not REPOSITORY.fullmatch(name):
        raise UserError(
            f"{name} does not exist on this machine; give a folder, or OWNER/NAME of a repository of the hub"
        )
    from huggingface_hub import snapshot_download  # imported here, because it takes long

    try:
        return Path(snapshot_download(name, revision=revision, token=token, allow_patterns=list(FILES)))
    except Exception as error:  # the type of network errors depends on the version of huggingface_hub
        raise UserError(
            f"{name} is not on this machine and cannot be fetched from the hub: {reason(error)}; check the name, the "
            "network and, for a private repository, the token"
        ) from error


def push_folder(folder: Path, name: str, token: str | None = None, private: bool | None = None) -> str:
    """Upload a model folder to the repository OWNER/NAME of the hub, which is created if it is missing; return its URL.

    Without `token`, that of `hf auth login` or HF_TOKEN is used. `private` is the visibility of a new repository; None
    is the default of its owner. Raises UserError if the hub refuses or cannot be reached.
    """
    if not REPOSITORY.fullmatch(name):
        raise UserError(f"{name!r} is not the name of a repository; give OWNER/NAME")
    from huggingface_hub import HfApi

    try:
        api = HfApi(token=token)
        url = api.create_repo(name, private=private, exist_ok=True)
        api.upload_folder(
            repo_id=name, folder_path=folder, allow_patterns=list(FILES), commit_message="Upload a model of HyperGRIT"
        )
    except Exception as error:  # as in `fetch_model`
        raise UserError(
            f"{name} cannot be uploaded to the hub: {reason(error)}; check the name, the network and the token, which needs "
            "write access"
        ) from error
    return str(url)


def reason(error: Exception) -> str:
    """The first line of an error."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
