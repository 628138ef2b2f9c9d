"""R³ for any training loop: settings, the class R3, the equations (core/) and the history of rollouts (history/).

Needs numpy, and torch only where tokens are counted (core/entropy.py, core/chunked_logprobs.py).
"""
