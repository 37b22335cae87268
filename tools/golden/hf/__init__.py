"""Tiny random models of the classes of `transformers`, as GGUF files with the logits of those
classes: an answer that engine logits are compared with and that nobody here computed. Needs torch
and transformers to make them, nothing to use them.
"""
