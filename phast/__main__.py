"""``python -m phast`` is ``phast``."""

from phast.cli.main import main

if __name__ == "__main__":
    main()
