"""Query all shards with SQL, without loading them: python docs/examples/read_duckdb.py out/demo"""

import sys

import duckdb
from pyarrow.dataset import dataset

rows = dataset(f"{sys.argv[1]}/arrow", format="ipc")  # DuckDB resolves the table name `rows` to this variable
print(duckdb.sql("select stage, reason, count(*) as n from rows where status = 'dropped' group by all order by n desc"))
print(
    duckdb.sql("""
        select status, count(*) as n, avg(clip_similarity) as similarity, avg(len(boxes)) as boxes
        from rows group by all order by all
    """)
)
print(
    duckdb.sql(f"select key, url, error_message from '{sys.argv[1]}/grit/*.parquet' where status <> 'success' limit 5")
)
