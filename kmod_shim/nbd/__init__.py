"""/dev/nbdX: the kernel's netlink family, sysfs, and the connection to a server."""
