"""Node power: who sleeps when, and how nodes are switched."""
