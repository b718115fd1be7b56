"""KV cache: the arrays behind block and slot ids, their memory pages, and their bytes for snapshots."""
