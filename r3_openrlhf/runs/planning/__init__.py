"""`r3 plan`: whether a run fits, its time and its disk space. Arithmetic; nothing is started.

shapes.py      a model's shape, from its config.json or a table of published ones
hardware.py    GPUs
formulas.py    bytes and seconds, each with its source
forecast.py    a configuration -> a Plan
verdict.py     what does not fit, and the settings that would make it fit
table.py       a Plan as a table
"""
