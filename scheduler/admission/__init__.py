"""What a domain (domain.py) consists of: the rules, its jobs, the queue, the book of what is held, and the history."""
