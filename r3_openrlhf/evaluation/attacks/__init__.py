"""Known ways around a grader (texts.yaml), tried on a user's problems (`r3 attack-rewards`)."""
