"""The command `farside`. It alone prints and exits; what it does stands in other modules, imported when needed."""

from farside.cli.app import main

__all__ = ["main"]
