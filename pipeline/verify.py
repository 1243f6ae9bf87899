"""`python -m pipeline.verify OUT`: the verb `verify`."""

import sys

from pipeline.commands.verify import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
