"""Language models of Hugging Face transformers, and tokens of their tokenizers, for petra-graph; this module imports nothing."""
