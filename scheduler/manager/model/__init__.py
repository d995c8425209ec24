"""The state that follows from the log: jobs, tasks, nodes, events, and how they are applied."""
