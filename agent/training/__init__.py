"""Jobs that take turns on a node: subtasks, and who may run which when.

subtask.py, node_queue.py, synchronizer.py   who may run which when, as pure functions
messages.py, link.py                         what is said about it, and by whom
turn_record.py                               what turns took
turn_server.py, group.py, executor.py        the process on each node that gives turns
"""
