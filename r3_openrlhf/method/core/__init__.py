"""The R³ paper as functions of plain values: no framework, no I/O, no clock, no global random state."""
