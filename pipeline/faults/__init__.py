"""Rows that make a stage fail: find them by bisection, drop them as `internal_error`, keep their neighbours."""
