"""CISPO (arXiv 2506.13585), one function: `r3 train ... train.loss=examples/own_cispo.py:cispo`."""


# four tensors [rows, tokens] -> the loss of each token: the clipped ratio weighs it, and keeps its gradient
def cispo(logprobs, old_logprobs, advantages, mask, settings):
    ratio = (
        (logprobs - old_logprobs)
        .exp()
        .clamp(1 - settings.eps_clip_low, 1 + settings.eps_clip_high)
    )
    return -ratio.detach() * advantages * logprobs
