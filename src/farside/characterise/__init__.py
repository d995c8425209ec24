"""`farside trace`: logs and options in, pages out. What counts and judges is in `farside.scheduler.characterise`."""
