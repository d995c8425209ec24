"""What the job log tells of jobs to come: models, what keeps them fresh, and what is made of them."""
