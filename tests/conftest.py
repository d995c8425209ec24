"""What all tests share."""

from hypothesis import settings

# How long one example takes depends on what else the machine does, and no test judges that.
settings.register_profile("farside", deadline=None)
settings.load_profile("farside")
