"""The papers' tables in miniature: `python -m demo.paper`, or `make paper SIZE=small`."""
