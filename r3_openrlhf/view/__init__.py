"""`r3 view`: what the method did, down to one token. Pages of run directories and evaluations,
which are only read.

library.py     the open runs and evaluations
run_reader.py  a run directory: curves, steps, rollouts;  evaluation.py: one of `r3 eval`
responses.py   the rows of a group;  tokens.py: the tokens of a response, and their values
search.py      rollouts by a text, their columns and an order, in the steps' files themselves
overview.py, step_page.py, group_page.py, tokens_page.py, problem_page.py, files_page.py, report.py:
a page's content each;  rendering.py and templates/ make HTML of it
app.py         the pages over HTTP"""
