"""Profiler: what a job's processes send, and what follows about its model. See docs/profiler.md. [tiresias §3.3.3.2]

preload/       the C library that goes into the processes; build_preload.py builds it
ring_file.py   the file between them and us
ring.py        what is in it: pure
iteration.py   where an iteration begins in a list of messages: pure; in_order.py and any_order.py find it
summarise.py   what one process sends in an iteration: pure
message.py     whole messages: pure
task.py        what all processes of a task have to say: pure
profiler.py    one task's profile, while it runs and at its end
"""
