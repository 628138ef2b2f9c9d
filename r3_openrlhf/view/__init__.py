"""`r3 view`: what the method did, down to one token. Pages of run directories and evaluations, which are only read.

library.py      which runs and evaluations are open
run_reader.py   one run directory: curves, steps, rollouts;  evaluation_reader.py: one of `r3 eval`
step_groups.py  the rows of a step -> groups, and what became of each
token_values.py the tokens of a response, with what is stored about each
search_index.py an index over the rollouts that grows with the run, in the user's cache
site.py        what every page needs; the content of each page is in overview_page.py, step_page.py, group_page.py, tokens_page.py,
               trajectory_page.py,
               problem_page.py, search_page.py and evaluation_pages.py, and templates/ says how; responses.py: the rows of a group
app.py          the pages over HTTP
"""
