"""The checks of `farside doctor`, by what they look at."""
