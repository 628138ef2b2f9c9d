"""R³ (Replay, Reflection and Ranking rewards, arXiv 2601.19620) for OpenRLHF. Importing this loads no framework."""

__version__ = "0.1.0"
