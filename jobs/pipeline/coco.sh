#!/bin/bash
# Pairs of COCO Captions as published, whose images and captions are in two lists of a file. An image has five captions,
# which are kept as a list:
#     jobs/pipeline/coco.sh annotations/captions_train2017.json /data/coco [key=value ...]
# Run it with the environment active (source .venv/bin/activate). The first step joins the lists, in OUTPUT.input. Images
# of a folder are read there, and only those that it lacks are downloaded:
#     jobs/pipeline/coco.sh ... "read.image_roots=[/data/train2017]" read.image_path_column=file_name
set -eu
captions=$1 output=$2
shift 2
[ -d "$output.input" ] || python - "$captions" "$output.input" << 'END'
import json
import sys

import pyarrow as pa

from pipeline import write_input

with open(sys.argv[1], encoding="utf-8") as file:
    lists = json.load(file)
captions = {}
for item in lists["annotations"]:
    captions.setdefault(item["image_id"], []).append(item["caption"])
rows = [{**image, "caption": captions.pop(image["id"], [])} for image in lists["images"]]
if captions:
    sys.exit(f"{len(captions)} images of the captions are not in the list of the images, such as {min(captions)}")
write_input([pa.Table.from_pylist(rows)], sys.argv[2])
END
exec hypergrit run "$(dirname "$0")/pairs.yaml" input="$output.input" output="$output" read.url_column=coco_url \
    read.captions=all "$@"
