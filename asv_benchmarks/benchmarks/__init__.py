"""Benchmarks of the whole way from import to text, on the shipped model.

``OXILLAMA_BENCH_MODEL`` names another GGUF file to measure, and ``OXILLAMA_BENCH_THREADS`` the number of threads
(default: all cores). What the numbers of one machine mean on another is their ratio only.
"""
