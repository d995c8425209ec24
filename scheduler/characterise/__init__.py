"""What a job log tells of its cluster: Helios's figures and implications, for any log. [helios §3]"""
