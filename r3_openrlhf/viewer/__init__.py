"""`r3 view`: what a run did, down to one token, as pages in a browser."""
