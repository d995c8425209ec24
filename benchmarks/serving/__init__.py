"""Serving measured live on this machine: shares of a device, promises kept, costs."""
