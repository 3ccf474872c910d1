"""What is known: starts, GPUs, models, layouts, and which starts may share a line."""
