"""The reward of experiment=smollm2_capitals."""


def names_it(response: str, reference: str) -> bool:
    """The continuation begins with the capital, as a word of its own."""
    named, rest = response.lstrip()[: len(reference)], response.lstrip()[len(reference) :]
    return named == reference and not rest[:1].isalnum()
