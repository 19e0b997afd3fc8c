"""``python -m phast`` is ``phast``."""

from phast.cli import main

main()
