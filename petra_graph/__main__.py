"""`python -m petra_graph` is `petra-graph`, and what launchers of several processes start."""

import sys

from petra_graph.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
