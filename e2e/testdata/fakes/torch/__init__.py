"""What the tests need of torch; see transformers beside it."""

__version__ = "2.9.0"

bfloat16 = "torch.bfloat16"
