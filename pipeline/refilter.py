"""`python -m pipeline.refilter source=OUT output=NEW score.min_score=X`: the verb `rewrite`."""

import sys

from pipeline.commands.rewrite import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
