"""Read train/ with Megatron Energon, after `energon prepare`: python docs/examples/read_energon.py out/energon"""

import sys

from megatron.energon import WorkerConfig, get_loader, get_train_dataset

order = {"shuffle_buffer_size": None, "max_samples_per_sequence": None, "repeat": False}
workers = WorkerConfig(rank=0, world_size=1, num_workers=0)
for batch in get_loader(get_train_dataset(sys.argv[1], batch_size=1, worker_config=workers, **order)):
    print(batch.__key__[0], tuple(batch.image.shape), batch.caption[0])
