"""R³ for any training loop: settings, the class R3, the equations (core/), the history.

Needs numpy, and torch only for tokens (method/core/entropy.py, stack/chunked_logprobs.py).
"""
