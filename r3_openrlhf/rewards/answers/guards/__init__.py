"""What a right answer must not be: a copy of the task, or a way around a scorer."""
