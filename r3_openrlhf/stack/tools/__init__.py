"""Tools that a response may call: their processes, and the two forms of a call."""
