"""Languages of a user, as the import path tests.rewards.code.languages:shell."""

from r3_openrlhf.rewards.code.languages import Language

javascript = Language(command=("/usr/bin/node", "{file}"), file="main.js", reserves_memory=True)
shell = Language(command=("/bin/sh", "{file}"), file="main.sh")
