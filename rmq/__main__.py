"""`python -m rmq`: the same as the `rmq` command."""

from __future__ import annotations


def main() -> None:
    """Run the command line and exit with its status."""
    from rmq.cli import command

    command(prog_name="rmq")


if __name__ == "__main__":
    main()
