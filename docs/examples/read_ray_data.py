"""Read train/ as a Ray Data dataset: python docs/examples/read_ray_data.py out/demo"""

import sys

import ray.data

rows = ray.data.read_webdataset(f"{sys.argv[1]}/train", file_extensions=["tar"])
for row in rows.iter_rows():
    print(row["__key__"], row["child.jpg"].shape[:2], row["child.txt"], row["numparents.txt"])
