"""The command `farside`. Only this folder prints and exits; the work is done in other modules, imported when needed."""

import sys


def main() -> None:
    """Runs the command line, and ends the process."""
    try:
        from farside.cli.imports import without_garbage_collection

        with without_garbage_collection():
            from farside.cli.app import main as run
    except KeyboardInterrupt:  # Ctrl-C while the first imports are under way
        sys.exit(130)
    run()
