"""``python -m tacit`` is the command ``tacit``."""

from tacit.cli import main

if __name__ == "__main__":
    main()
