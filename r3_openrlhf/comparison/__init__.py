"""Runs compared by arm: accuracy at equal generated tokens, with intervals over seeds."""
