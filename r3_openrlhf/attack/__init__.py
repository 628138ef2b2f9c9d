"""Known ways around a grader, tried against a user's own problems (`r3 attack-rewards`). texts.yaml is what they write."""

from importlib.resources import files

import yaml

TEXTS = yaml.safe_load(files(__name__).joinpath("texts.yaml").read_text(encoding="utf-8"))
