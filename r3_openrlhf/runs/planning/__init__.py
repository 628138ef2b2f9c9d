"""`r3 plan`: whether a run fits, its time and its disk space. Arithmetic; nothing is started."""
