"""A member of a training job: declares its model, holds lanes to the job's Aggregators, and keeps them.

member.py       a member's session, whichever way its plan comes
static_plan.py  a plan without a manager: Aggregators and a key file that the user names

Runs in users' own processes: nothing here imports torch or starts a thread when it is imported.
"""
