"""What people and programs see of the state: listings, overview, usage, audit."""
