"""Low-rank adapters: read, bound to a model, and merged into its file.

>>> import oxillama as ox
>>> engine = ox.load("model.gguf")
>>> engine.load_lora("pirate", "pirate-lora.gguf")  # or a folder that Hugging Face PEFT wrote
>>> engine.generate("Hello", lora=[("pirate", 0.8)])
"""

from oxillama.lora.adapter import Lora, as_lora
from oxillama.lora.registry import NO_LORAS, LoraRegistry, LoraSet, Wanted, check_wanted

__all__ = ["NO_LORAS", "Lora", "LoraRegistry", "LoraSet", "Wanted", "as_lora", "check_wanted"]
