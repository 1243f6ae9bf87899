"""Extract the vocabulary's drawings from an Iconify icon set into the compact files of this folder.

    npm pack @iconify-json/twemoji && tar xzf iconify-json-twemoji-*.tgz
    python -m demo.world.artwork.extract twemoji package/

The output is one gzipped JSON per style with reproducible bytes:
`{"source", "version", "license", "icons": {concept: [width, height, body]}}`. `body` is the content of the `<svg>`
element. OpenMoji needs no such file: its package is a dependency.
"""

import gzip
import json
import sys
from pathlib import Path
from typing import Any

from demo.world.vocabulary import ALL_CONCEPTS

HERE = Path(__file__).parent


def icon_of(code_point: str, icons: dict[str, Any], names: dict[str, str]) -> list[Any] | None:
    """Return [width, height, body] of an emoji, or None if the icon set lacks it."""
    code = code_point.lower()
    name = names.get(code) or names.get(f"{code}-fe0f")
    icon = icons["icons"].get(name)
    if icon is None:
        return None
    return [icon.get("width", icons["width"]), icon.get("height", icons["height"]), icon["body"]]


def extract(style: str, package: Path) -> Path:
    """Write `<style>.json.gz` from an unpacked `@iconify-json/*` package. Returns its path."""
    icons = json.loads((package / "icons.json").read_text())
    names = json.loads((package / "chars.json").read_text())
    manifest = json.loads((package / "package.json").read_text())
    found = {concept.name: icon_of(concept.code_point, icons, names) for concept in ALL_CONCEPTS}
    subset = {
        "source": manifest["name"],
        "version": manifest["version"],
        "license": manifest["license"],
        "icons": {name: icon for name, icon in found.items() if icon is not None},
    }
    path = HERE / f"{style}.json.gz"
    text = json.dumps(subset, ensure_ascii=False, separators=(",", ":"))
    path.write_bytes(gzip.compress(text.encode(), compresslevel=9, mtime=0))
    return path


if __name__ == "__main__":
    extract(sys.argv[1], Path(sys.argv[2]))
