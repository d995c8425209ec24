"""The command `farside demo`: remote memory and a GPU cluster on this machine, in two minutes."""
