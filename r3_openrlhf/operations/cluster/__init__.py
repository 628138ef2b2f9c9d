"""Jobs on clusters: Slurm and Ray submission, the agent on every node, stopping and continuing."""
