"""Jobs that take turns on a node: subtasks, and who may run which when."""
