"""Entry point of `python -m farside`: runs the command `farside`."""

from farside.cli import main

main()
