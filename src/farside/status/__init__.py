"""The command `farside status`: donors, borrowers, manager and agents of a machine, as each reports itself."""
