"""Stage `download`: images over HTTP, verified, resized, and accounted for row by row."""

from pipeline.download.config import DownloadConfig
from pipeline.download.stage import Download

__all__ = ["Download", "DownloadConfig"]
