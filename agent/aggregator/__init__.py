"""`farside aggregator`: serves chunks of many training jobs' models from a process that is replaced in milliseconds.

layout.py   tensors of a model to chunks; shared with members and manager
plan.py     who owns which chunks of a job; shared with members and manager
door.py     what is said before a lane begins; shared with members
"""
