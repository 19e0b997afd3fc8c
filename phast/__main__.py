"""``python -m phast`` is ``phast``."""

from phast.cli import main

if __name__ == "__main__":
    main()
