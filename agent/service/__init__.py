"""What runs on a node beside its tasks: each service says its facts, takes orders and says when it is empty."""
