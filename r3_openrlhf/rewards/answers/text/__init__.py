"""What graders know of texts: words, patterns and the numbers in them. Standard library only."""
