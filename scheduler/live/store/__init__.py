"""Where the log is kept: SQLite on one machine, PostgreSQL where several managers share it."""
