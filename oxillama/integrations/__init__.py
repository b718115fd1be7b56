"""Classes of other libraries whose work an engine does in the same process.

Each module is for one library, which it imports: none is imported by the rest of the package, so that the libraries
need not be there.
"""
