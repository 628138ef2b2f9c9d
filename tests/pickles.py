"""A pickle that does something when it is loaded: it makes a file."""


class Planted:
    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return open, (self.path, "w")
