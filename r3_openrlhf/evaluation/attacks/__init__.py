"""Known ways around a grader, tried against a user's own problems (`r3 attack-rewards`). texts.yaml is what they write."""
