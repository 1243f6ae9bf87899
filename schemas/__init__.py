"""What a row is after each stage, and why a row may end early. Imports nothing of ours."""
