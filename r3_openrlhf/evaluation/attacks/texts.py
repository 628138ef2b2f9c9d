"""The texts that attacks write, out of texts.yaml."""

from importlib.resources import files

import yaml

TEXTS = yaml.safe_load(files(__package__).joinpath("texts.yaml").read_text(encoding="utf-8"))
