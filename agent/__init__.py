"""Node agent: runs tasks on one node and reports the node to the manager."""
