"""Commands that make an output from finished outputs, without running the job again."""
