"""`python -m rollbook` is `rollbook`."""

from rollbook.cli import main

if __name__ == "__main__":
    main(prog_name="rollbook")
