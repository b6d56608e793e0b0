"""``python -m echo_shm`` is the same as ``echo-shm``."""

import sys

from echo_shm.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
