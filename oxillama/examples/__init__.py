"""Examples to copy: each module is one whole program, which also runs as it is with the model that ships."""
