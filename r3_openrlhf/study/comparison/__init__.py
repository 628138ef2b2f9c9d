"""Several runs, in arms by seeds, into one table and plots."""
