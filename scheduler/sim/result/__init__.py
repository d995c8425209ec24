"""What a simulation came to: seen while it ran, counted, explained, written down."""
