"""`python -m farside` is `farside`."""

from farside.cli import main

main()
