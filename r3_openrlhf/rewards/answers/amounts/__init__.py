"""Numbers with units, and cheap comparisons of them."""
