"""`r3 doctor`: what this machine and its installation have, and what a run needs.

It is for installations that do not work, so nothing here imports more than Python's standard library at its top: without the
stack, without click and rich, `python -m r3_openrlhf.operations.doctor` in a checkout says what is missing. What is heavy or may be
broken (torch, vLLM, DeepSpeed, Ray) is imported in another process (imports.py).
"""
