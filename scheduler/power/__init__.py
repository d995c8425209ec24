"""Node power: which nodes sleep, how their state is kept, and the drivers that switch them."""
