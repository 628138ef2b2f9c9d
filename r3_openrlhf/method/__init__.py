"""R³ for any training loop: settings, the class R3, the equations (core/) and the history of rollouts (history/).

Needs numpy, and torch only where tokens are counted (method/core/entropy.py, stack/chunked_logprobs.py).
"""
