"""Training of a draft layer (NextN/MTP) for a small base model by self-distillation."""
