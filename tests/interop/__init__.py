"""Programs that nobody here wrote, at a server of ours. A package, so that its sandboxes end with its last test."""
