"""Settings of the read stage."""

import codecs
import re
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal, NamedTuple

from hypergrit_common.config import reaches, runtime
from hypergrit_common.errors import UserError
from pipeline.read.where import Where

Captions = Literal["first", "longest", "join", "random", "all"]


class LevelRule(NamedTuple):
    """The value of `read.levels`: columns with names, or one column and the pattern whose groups are the names."""

    columns: tuple[str, ...]
    pattern: re.Pattern[str] | None
    are_paths: bool  # a label holds all names down to its level


def parse_levels(text: str) -> LevelRule:
    """Parse the value of `read.levels`. Raises UserError if it is not valid."""
    column, colon, expression = text.partition(":")
    separator = "|" if "|" in column else ","
    columns = tuple(name.strip() for name in (column if colon else text).split(separator))
    try:
        pattern = re.compile(expression) if colon else None
    except re.error as error:
        raise UserError(f"levels is {text!r}: {error}; correct the pattern behind the colon") from None
    if not all(columns) or (pattern is not None and (len(columns) != 1 or not pattern.groups)):
        raise UserError(
            f"levels is {text!r}; give columns, such as kingdom,phylum,class, or one column and a pattern with a group "
            "(...) for each level, such as path:/([^/]+)/([^/]+)"
        )
    return LevelRule(columns, pattern, separator == ",")


@dataclass(frozen=True, kw_only=True)
class ReadConfig:
    """The columns of the input that hold URL, caption and identifier, and limits on the size of a row."""

    # column with the image URL; null: url, image_url or link, in any letter case. Here and in the next ones, image.url and
    # chat[1].value are fields of columns
    url_column: str | None = None
    # column with the caption; null: caption, text, alt_text, alt or title. Several, such as caption,title: those that are
    # not empty form a list, used as read.captions says; a comma within a name is \,
    caption_column: str | None = None
    # column with the identifier of a row, by which it is found later; null: id, uid, sample_id, image_id or key
    id_column: str | None = None
    # column with the image itself: its bytes, also as base64, or a struct {bytes, path} as in Hugging Face datasets; null:
    # image, img, jpg, png, webp, image_bytes, bytes and the like, beside a URL column if it has bytes. Only rows without
    # an image are downloaded
    image_column: str | None = None
    # column with the path of an image file; null: image_path, file_name, filename or filepath, in files with neither a
    # URL nor an image column
    image_path_column: str | None = None
    # folders and URLs, such as [/data/images, s3://bucket/prefix], from which paths and URLs of the rows (file://, s3://,
    # gs://) may be read; nothing else is
    image_roots: tuple[str, ...] = reaches(())
    # use of a caption column that holds a list: the first caption, the longest, all of them joined by spaces (join), one at
    # random (random), or all as a list, from which the trainer draws (all); null: such rows are dropped
    captions: Captions | None = None
    # labels of a taxonomy, from general to specific, which become `levels` in the JSON of train/; without a caption column,
    # the finest is the caption. kingdom,phylum,class: columns with names; a label joins the names down to its level, as in
    # RCME and BioCLIP; kingdom|phylum|class: a label is one name; COLUMN:PATTERN: the names are the groups of a regular
    # expression that is searched in one column, such as a path, and are joined too
    levels: str | None = None
    # condition on the columns of a row, such as "pwatermark < 0.5 and similarity > 0.3"; other rows are dropped as
    # not_selected, before any download
    where: str | None = None
    # input format of your own, module:Class: files with its suffixes are read by it (docs/extending.md)
    format: str | None = reaches(None)
    # encoding of text files, such as latin-1 or utf-16
    encoding: str = "utf-8"
    # character between the fields of CSV and TSV files; null: a comma in .csv, a tab in .tsv
    delimiter: str | None = None
    # column names of CSV and TSV files that have no header line
    columns: tuple[str, ...] = ()
    # true: fields of CSV and TSV files may be in double quotes; false: a quote is a character like any other
    quotes: bool = True
    # character before a quote or a delimiter that is part of a field of a CSV or TSV file: \ in files of Spark and MySQL; a
    # field \N is then a missing value, and one before another character is a character. null: a quote within quotes is doubled
    escape: str | None = None
    # end of the key of a sample in the names of a tar: first_dot, as in WebDataset, or last_dot, for names such as
    # photo.2021.jpg
    tar_key: Literal["first_dot", "last_dot"] = "first_dot"
    # rest of the name of the picture of a sample in a tar, such as input.jpg; several, such as jpg,input.jpg: the first that
    # exists. null: jpg, png and the other formats of images
    image_member: str | None = None
    # rest of the name of the file with the caption of a sample in a tar, such as output.txt; one with the end json holds
    # columns. null: txt and json
    caption_member: str | None = None
    # name of the list with the rows in a .json file that holds an object; null: the file is a list, or one object per row
    json_key: str | None = None
    # rows: a list of objects; columns: an object with a list per column, all of the same length
    json_layout: Literal["rows", "columns"] = "rows"
    # leave out input files of which no row can be read, instead of stopping; the job then ends with exit code 3
    skip_damaged: bool = runtime(False)
    # file with URLs, hosts and SHA-256 hashes of images, one per line: their rows are dropped as taken_down, and the output
    # keeps the digests. For new entries after shards are finished, run `hypergrit takedown` first
    takedown: str | None = runtime(None)

    max_row_bytes: ClassVar[int] = 1_048_576
    """Longest line of a text file, and largest .json or .txt of a tar; rows with a longer one are dropped. A row of URL,
    caption and scores has some hundred bytes, and one with an embedding of 4,096 numbers as text some 80,000."""
    captions_seed: ClassVar[int] = 0
    """Seed of captions=random; the choice also depends on the URL and the captions."""
    max_captions: ClassVar[int] = 100
    """Captions of a row with captions=all; rows with more are dropped."""
    max_row_lines: ClassVar[int] = 100
    """Lines of a row of a CSV or TSV file, whose quoted fields may contain line breaks; if a quote is not closed within
    them, its line is dropped."""
    max_image_bytes: ClassVar[int] = 64_000_000
    """Largest image of a tar or a column; rows with a larger one are dropped without reading it. Twice download.max_bytes."""
    max_url_characters: ClassVar[int] = 8192
    """Longest URL, the limit of most web servers; rows with a longer one are dropped."""
    max_boxes: ClassVar[int] = 1000
    """Boxes in each of GRIT's columns; rows with more are dropped."""

    def __post_init__(self) -> None:
        if self.delimiter not in (None, r"\t") and (len(self.delimiter) != 1 or self.delimiter in '"\r\n'):
            raise UserError(
                f'delimiter is {self.delimiter!r}; give one character, such as ";" or "|", or "\\t" for a tab'
            )
        if self.escape is not None and (len(self.escape) != 1 or self.escape in ('"', "\r", "\n", self.delimiter)):
            raise UserError(
                f"escape is {self.escape!r}; give one character, such as \\, and neither quote nor delimiter"
            )
        if len(set(self.columns)) != len(self.columns) or not all(self.columns):
            raise UserError(f"columns is {list(self.columns)}; give each column a name of its own")
        try:
            is_text = (found := codecs.lookup(self.encoding))._is_text_encoding and "escape" not in found.name
            codecs.getincrementaldecoder(self.encoding)
        except (LookupError, ValueError):
            is_text = False
        if not is_text:
            raise UserError(
                f"encoding is {self.encoding!r}; give one that Python knows, such as utf-8, latin-1 or utf-16"
            )
        if self.json_key is not None and self.json_layout == "columns":
            raise UserError("json_layout is columns, in which all lists are columns; remove json_key")
        if len(self.caption_columns) > 1 and self.captions is None:
            raise UserError(
                f"caption_column={self.caption_column} needs a rule; set captions to first, longest, join, random or all. "
                "Write a comma that is part of a name as \\,"
            )
        assert self.where is None or self.selection  # checks the expression
        assert self.levels is None or self.level_rule  # checks the text

    @cached_property
    def level_rule(self) -> LevelRule | None:
        """The parsed `levels`. Raises UserError if it is not valid."""
        return None if self.levels is None else parse_levels(self.levels)

    @property
    def caption_columns(self) -> tuple[str, ...]:
        """The names of the columns in `caption_column`."""
        return tuple(name.replace("\\,", ",") for name in re.split(r"(?<!\\),", self.caption_column or ""))

    @cached_property
    def named_columns(self) -> tuple[str, ...]:
        """The names of all columns that settings name; those with a dot or bracket may be fields of columns."""
        names = (self.url_column, *self.caption_columns, self.id_column, self.image_column, self.image_path_column)
        levels, where = self.level_rule, self.selection
        return tuple(filter(None, (*names, *(levels.columns if levels else ()), *(where.columns if where else ()))))

    @cached_property
    def selection(self) -> Where | None:
        """The compiled condition `where`. Raises UserError if it is not valid."""
        return None if self.where is None else Where(self.where)
