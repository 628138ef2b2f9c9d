from tests.works_with import page

print(page(), end="")
