"""The loop of an iterative training program: pull, update, compute by input blocks, push.

job.py         `farside.training.begin`: the loop, its checkpoints, and what all workers agree on
block.py       which worker has which input blocks
push_pull.py   sums of all workers' parts: of one worker, or by Aggregators
agreement.py   the numbers by which workers stop, fail and make checkpoints at the same iteration
turns.py       turns on a node that several jobs share
spilled_blocks.py   blocks of which some lie on the disk or at a peer; spill_file.py, reload.py
spilling.py    which share of them does, by memory_meter.py; parked_model.py: the model likewise
checkpoint.py  model, sums and state of blocks in files, for any number of workers
ended.py       why a program ends before its work is done
"""
