"""Nodes that sleep, live: the energy policies and the state machine of `scheduler/energy`, over the manager's log.

note.py    what the log keeps of a node's power; back and forth to what the state machine knows
slept.py   how long nodes have slept
past.py    how many nodes were busy before this manager began, for a policy to learn from
lack.py    which sleeping nodes the jobs that wait would fill
keep.py    the loop: beside the brain that leads, it keeps as many nodes on as are wanted
"""
