#!/bin/bash
# Pairs of COCO Captions as published, whose images and captions are in two lists of a file. An image has five captions,
# which are kept as a list:
#     jobs/pipeline/coco.sh annotations/captions_train2017.json /data/coco [key=value ...]
# Run it with the environment active (source .venv/bin/activate). The first step joins the lists, in OUTPUT.input,
# which belongs to that file. Images of a folder are read there, and only those that it lacks are downloaded:
#     jobs/pipeline/coco.sh ... "read.image_roots=[/data/train2017]" read.image_path_column=file_name
set -eu
captions=$1 output=$2
shift 2
python - "$captions" "$output.input" << 'END'
import hashlib
import json
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

path, folder = Path(sys.argv[1]).absolute(), Path(sys.argv[2])
try:
    text = path.read_bytes()
except OSError as error:
    sys.exit(f"{path} cannot be read: {error.strerror}")
origin = {b"captions_file": str(path).encode(), b"captions_sha256": hashlib.sha256(text).hexdigest().encode()}
if folder.exists():
    found = next((pq.read_schema(file).metadata or {} for file in sorted(folder.glob("*.parquet"))), {})
    if found.get(b"captions_sha256") == origin[b"captions_sha256"]:
        sys.exit()
    other = found.get(b"captions_file", b"a file that it does not name").decode()
    same = " as it was before" * (other == str(path))
    sys.exit(f"{folder} was made of {other}{same}, not of {path}; give another OUTPUT, or delete {folder}")
captions = {}
try:
    lists = json.loads(text)
    for item in lists["annotations"]:
        captions.setdefault(item["image_id"], []).append(item["caption"])
    rows = [{**image, "caption": captions.get(image["id"], [])} for image in lists["images"]]
except (ValueError, LookupError, TypeError) as error:
    reason = f"{error} is missing" if isinstance(error, KeyError) else error
    sys.exit(f"{path} is no file of captions, as captions_val2017.json is one: {reason}")
if alone := captions.keys() - {image["id"] for image in rows}:
    sys.exit(f"{len(alone)} images of the captions are not in the list of the images, such as {min(alone)}")

from hypergrit_common.errors import UserError
from pipeline import write_input

names = dict.fromkeys(name for row in rows for name in row)
try:
    table = pa.table({name: [row.get(name) for row in rows] for name in names})
    write_input([table.replace_schema_metadata(origin)], folder)
except (pa.ArrowException, UserError) as error:
    sys.exit(f"{path}: {error}")
END
exec hypergrit run "$(dirname "$0")/pairs.yaml" input="$output.input" output="$output" read.url_column=coco_url \
    read.captions=all "$@"
