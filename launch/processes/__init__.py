"""Several learner processes as one."""
