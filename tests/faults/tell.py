"""python -m tests.faults.tell NAME...: what these scenes leave in their folders, and what their engines give then."""

import sys
import tempfile
from hashlib import blake2b
from pathlib import Path

from tests.faults.children import proof_of
from tests.faults.scenes import SCENES
from tests.faults.trees import read_tree

for name in sys.argv[1:]:
    with tempfile.TemporaryDirectory() as folder:
        scene = SCENES[name](Path(folder))
        scene.act(Path(folder))
        print(name, blake2b(repr(read_tree(Path(folder))).encode()).hexdigest(), proof_of(scene))
