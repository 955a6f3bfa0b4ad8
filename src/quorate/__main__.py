"""`python -m quorate` is the `quorate` command."""

from quorate.cli import main

if __name__ == "__main__":
    main()
