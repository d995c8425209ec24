"""Runs tasks of jobs on this node, so that they outlive the agent and nothing outlives them.

ledger.py       which tasks there are and what to do about a command: pure
environment.py  the variables a task finds: pure
account.py      as whom a task runs
record_file.py   files that are whole or refused
containment.py  what holds all processes of a task together
launch.py       the last steps of a new process before it becomes the user's program
task_supervisor.py  the process beside each task that waits for it and keeps its exit code
fork_server.py  forks task supervisors quickly
runner.py       the ledger with real task supervisors
"""
