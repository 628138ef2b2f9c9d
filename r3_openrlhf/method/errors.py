"""The errors a user can meet. Each carries one sentence: which key or file, which value, what to do."""


class R3Error(Exception):
    """Base of every error that this project raises on purpose; the command line prints it without a traceback."""


class ConfigError(R3Error):
    """A configuration key is unknown, has a bad value, or excludes another one."""


class DataError(R3Error):
    """A data set is missing, lacks a column, or holds a row that cannot be used."""


class HistoryError(R3Error):
    """The history store cannot be opened, read or written as asked."""


class GradingError(R3Error):
    """Grading as a whole cannot go on (a single rollout that cannot be graded is data, not an error)."""


class TrainingStopped(R3Error):
    """A running job met a condition under which its numbers would no longer mean anything."""


class ClusterError(R3Error):
    """A job, a node or a cluster's software is not as it must be."""


class RunInterrupted(R3Error):
    """The run was asked to end before its end; it goes on from its newest checkpoint. No mistake of anybody's."""
