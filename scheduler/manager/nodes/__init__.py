"""The manager's side of the agents: sessions, orders, donors."""
