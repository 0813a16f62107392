"""``python -m cleanpairs``."""

from cleanpairs.cli import main

main()
