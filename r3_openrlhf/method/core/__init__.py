"""The R³ paper as functions of plain values: no framework, I/O, clock or global random state."""
