"""Steps in child processes, so that a crash, a hang or a lack of memory ends the child alone; no Ray."""
