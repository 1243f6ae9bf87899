"""Read an input as shards of rows, with a reason for each row that cannot be read.

    listing -> plan -> source    the files and their formats (FORMATS); the rows of each shard; the rows as a table
    parquet, text, samples       the formats: how rows are found, and become records
    rows                         what the columns mean: a record becomes a row

All memory is bounded, and no input is trusted.
"""
