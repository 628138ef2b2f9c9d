"""`r3 view`: what the method did, down to one token. Run directories and evaluations are only read.

library.py has the open ones, run_reader.py and evaluation.py read one each. A page's content is a
function of its file (overview.py, group_page.py, ...), rendering.py and templates/ make HTML of it,
and app.py has their addresses."""
