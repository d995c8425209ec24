"""The live manager, `farside manager`: an event log, the processes that read it, and the HTTP API."""
