"""Where the answer is in a response: the marks in it, and the choice among them."""
