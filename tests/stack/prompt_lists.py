"""Problems as upstream's data loader gives them."""


class Problems(list):
    """With what upstream's data set has besides its items (datasets/prompts_dataset.py:82)."""

    prompts = property(lambda self: [prompt for prompt, _ in self])
    labels = property(lambda self: [label for _, label in self])
