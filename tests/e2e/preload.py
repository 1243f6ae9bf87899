"""Third-party packages that take seconds to import: the process that forks the commands imports them once."""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before the packages start threads, which a fork does not copy

import aiohttp
import cv2
import omegaconf
import pandas
import pyarrow.dataset
import pyarrow.parquet
import spacy
import torch
import torchvision
import transformers

__all__ = ["aiohttp", "cv2", "omegaconf", "pandas", "pyarrow", "spacy", "torch", "torchvision", "transformers"]
