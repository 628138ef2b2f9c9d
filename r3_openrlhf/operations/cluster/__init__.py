"""Jobs on clusters: Slurm and Ray submission, the agent on every node, stopping and continuing."""

from r3_openrlhf.method.errors import R3Error


class ClusterError(R3Error):
    """A job, a node or a cluster's software is not as it must be."""
