"""The same cycle over a Slurm that is there already: it looks, decides, and tells Slurm by Slurm's own commands.

snapshot.py   what was seen of jobs, nodes and partitions at one moment
tres.py       GPUs in Slurm's texts; hostlist.py: its lists of nodes
read_text.py  what ``scontrol --oneliner`` prints; read_json.py: what ``squeue --json`` does
commands.py   the door: Slurm's programs, whatever version, one reading a turn, one call an action
past.py       what has to be remembered of a job between two turns, because Slurm forgets it
read_sacct.py jobs that have ended, as sacct prints them; shadow_job.py: such a job; foretell.py: what its like took
desk.py       a snapshot and what is remembered as a domain of the cycle
priority.py   an order as priorities, with as few changes as will do
nice.py       an order as nice values, for who may only lower
action.py     what Slurm can be told
decide.py     the cycle's answer as actions
power.py      which nodes sleep
shadow.py     what Slurm did beside what would have been done, and the expected gain
notebook.py   what is written down
sleeper.py    power, turn by turn; watcher.py: the shadow, turn by turn
engine.py     the loop
"""
