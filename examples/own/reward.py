"""The reward of this folder: the last number of a response, compared as a number."""

import re
from decimal import Decimal

NUMBER = re.compile(r"-?\d+(?:,\d{3})*(?:\.\d+)?")


def is_right(response: str, reference: str) -> bool:
    """True if the last number of the response equals the reference: 7.5 is 7.50, and 1,200 is 1200."""
    numbers = NUMBER.findall(response)
    return bool(numbers) and Decimal(numbers[-1].replace(",", "")) == Decimal(reference)
