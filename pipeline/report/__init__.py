"""The last step of a run: what the finished shards hold, as stats.json, as a page to look at, and as a table for the terminal."""

from pipeline.report.config import ReportConfig
from pipeline.report.html import write_report
from pipeline.report.stats import build_stats
from pipeline.report.summary import summary_table

__all__ = ["ReportConfig", "build_stats", "summary_table", "write_report"]
