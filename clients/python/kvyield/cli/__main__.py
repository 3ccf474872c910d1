"""``python -m kvyield.cli``."""

from kvyield.cli import main

if __name__ == "__main__":
    main(prog_name="kvyield")
