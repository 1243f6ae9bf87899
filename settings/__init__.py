"""Configuration as both halves of the project have it: dataclasses, a YAML, `key=value`, and --help. Imports nothing of ours."""
