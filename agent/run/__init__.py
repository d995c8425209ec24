"""Run tasks of jobs on this node: tasks outlive the agent, and no process outlives its task.

ledger.py       which tasks there are and what to do about a command: pure
environment.py  the variables a task finds: pure
account.py      the user that a task runs as
record_file.py  files that are whole or refused
containment.py  keeps all processes of a task together
launch.py       the last steps of a new process before it becomes the user's program
task_supervisor.py  the process beside each task, which waits for it and records its exit code
fork_server.py  forks task supervisors quickly
runner.py       the ledger with real task supervisors
"""
